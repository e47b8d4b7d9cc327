"""The file EMERGENCY_STOP: made, looked at and lifted. That it exists is the order; what is in it is for people.

A bare `touch` counts as much as `agentbox estop`, and so does a directory or a dangling link of that name.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from dataclasses import dataclass

from sandbox.boxes.where import own_box
from sandbox.control.clock import now
from sandbox.errors import NOT_PROVEN, AgentboxError, Refused, printable
from sandbox.kernel.mounts import cgroup_of
from sandbox.manifest.home import Home, fsync_directory, open_private

SIZE_MAX = 4096


@dataclass(frozen=True)
class Standing:
    """`on`: None = could not tell, and `why` says it. `since` is RFC 3339; what nobody wrote down is ""."""

    on: bool | None
    path: str
    since: str = ""
    by: str = ""
    reason: str = ""
    why: str = ""

    def as_dict(self) -> dict[str, object]:
        """As `estop --status --json` gives it."""
        keys = {"on": self.on, "path": self.path, "since": self.since, "by": self.by, "reason": self.reason}
        return {**{key: None if value == "" else value for key, value in keys.items()}, "why": self.why or None}


def look(home: Home) -> Standing:
    """Is the emergency stop on, since when, by whom and why? Never raises, never hangs on what stands there."""
    path = home.emergency_stop
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return Standing(False, path)
    except OSError as error:
        return Standing(None, path, why=f"{path} cannot be looked at: {error.strerror}")
    values = _values(path) if stat.S_ISREG(info.st_mode) else {}
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(info.st_mtime))
    owner = f"uid {info.st_uid} (the file's owner)"
    return Standing(True, path, values.get("at", since), values.get("by", owner), values.get("reason", ""))


def _values(path: str) -> dict[str, str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        lines = os.read(fd, SIZE_MAX).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    finally:
        os.close(fd)
    pairs = (line.partition(": ") for line in lines)
    return {key: printable(value.strip()) for key, _, value in pairs if value.strip() and key in ("at", "by", "reason")}


def write(home: Home, reason: str, by: str) -> tuple[bool, str]:
    """Make the stop stand, through a crash too. Returns whether it does, and what went wrong, or "".

    One that stands already is left as it is. Where the text finds no room, an empty file often does.
    """
    path = home.emergency_stop
    problem = ""
    try:
        home.ensure()
    except AgentboxError as error:
        problem = str(error)
    try:
        if not os.path.lexists(path):
            _replace(path, f"at: {now()}\nby: {_one_line(by)}\nreason: {_one_line(reason)}\n")
        fsync_directory(home.path)
    except OSError as error:
        problem = problem or f"{path} could not be written: {error.strerror}"
        _touch(path)
    stands = os.path.lexists(path)
    return stands, "" if stands and not problem else problem


def _replace(path: str, text: str) -> None:
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{os.getpid()}"
    fd = open_private(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        raw = text.encode("utf-8", "replace")
        if os.write(fd, raw) != len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
        os.rename(temporary, path)
    except OSError:
        _unlink(temporary)
        raise
    finally:
        os.close(fd)


def _touch(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        fsync_directory(os.path.dirname(path))
    except OSError:
        return


def lift(home: Home) -> bool:
    """Take the emergency stop away; False if it was not on. Raises Refused inside of a box, AgentboxError."""
    path = home.emergency_stop
    _refuse_inside(path)
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
        fsync_directory(home.path)
    except FileNotFoundError:
        return False
    except OSError as error:
        what = f"{path} cannot be removed: {error.strerror}"
        raise AgentboxError(what, fix="remove it by hand", code=NOT_PROVEN) from None
    return True


def _refuse_inside(path: str) -> None:
    """Own cgroup decides, not the environment; what can't be told counts as inside."""
    own = own_box()
    where = f"this is inside of run {own.run_id}" if own else "this process's own cgroup cannot be told"
    if own is not None or cgroup_of() is None:
        what = f"the emergency stop is lifted from outside of any box alone, and {where}"
        raise Refused(what, fix="do it in a shell of your own" if own else f"remove {path} by hand")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
