"""A cgroup v2 directory: its files, its subtree, and waiting on its events.

Source: Documentation/admin-guide/cgroup-v2.rst. Everything here goes by the kernel's words: a group is
empty when `cgroup.events` says `populated 0` (live processes in the whole subtree; zombies don't count).
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from collections.abc import Callable
from typing import TypeVar

from sandbox.kernel.files import read_all
from sandbox.kernel.mounts import cgroup2_mount, directory

T = TypeVar("T")

FIRST_PAUSE = 0.0001
"""Seconds; a few processes are frozen or dead within a fraction of a millisecond."""
POLL_MAX = 0.1
"""Seconds after which a wait looks again by itself."""

GONE = (errno.ENOENT, errno.ENODEV)


class Cgroup:
    """A directory in a cgroup2 mount, by absolute path. It need not exist."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")

    def __repr__(self) -> str:
        return f"Cgroup({self.path!r})"

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def child(self, name: str) -> Cgroup:
        return Cgroup(f"{self.path}/{name}")

    def exists(self) -> bool:
        """Is it there? A directory above that its owner has locked is opened: an agent could hide its box so.

        What lies behind another user's lock can't be a box of ours, and counts as not there. Where the kernel can't
        tell (no memory, say), it counts as there: whoever looks into it then finds out.
        """
        for _ in range(2):
            try:
                return stat.S_ISDIR(os.stat(self.path).st_mode)  # an id may be the name of a file of every cgroup
            except PermissionError:
                _open_way(self.path)
            except OSError as error:
                return error.errno not in (*GONE, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
        return False

    def contains(self, path: str) -> bool:
        """Is cgroup `path`, as /proc/PID/cgroup tells it, this group or below it?"""
        mount = cgroup2_mount()
        where = directory(path.removesuffix(" (deleted)"), mount) if mount else None
        return where is not None and (where + "/").startswith(self.path + "/")

    def inode(self) -> int | None:
        """The directory's inode, which a new cgroup of the same name does not share, or None."""
        try:
            return os.stat(self.path).st_ino
        except OSError:
            return None

    def read(self, name: str) -> str:
        """A file's text. Raises OSError; ENOENT and ENODEV mean that the cgroup is gone."""
        return self._open_and(name, os.O_RDONLY, read_all).decode("utf-8", "surrogateescape")

    def write(self, name: str, text: str) -> None:
        """One write(2) to a file. Raises OSError."""
        self._open_and(name, os.O_WRONLY, lambda fd: os.write(fd, text.encode()))

    def _open_and(self, name: str, flags: int, act: Callable[[int], T]) -> T:
        path = f"{self.path}/{name}"
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except PermissionError:
            # The agent may have taken the rights away from its own cgroup's files; the owner can give them back.
            _give_rights_back(self.path, path)
            fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            return act(fd)
        finally:
            os.close(fd)

    def keyed(self, name: str) -> dict[str, int]:
        """A flat keyed file (`cgroup.events`, `memory.events`, `cpu.stat`) as a dict. Raises OSError."""
        pairs = (line.split() for line in self.read(name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}

    def number(self, name: str) -> int | None:
        """A file with one number; None for `max`, a missing file or one that can't be read."""
        try:
            text = self.read(name).strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def event(self, key: str) -> bool | None:
        """A flag of `cgroup.events`; False if the cgroup is gone, None = could not tell."""
        try:
            value = self.keyed("cgroup.events").get(key)
        except OSError as error:
            return False if error.errno in GONE and not os.path.lexists(self.path) else None
        return None if value is None else value == 1

    def populated(self) -> bool | None:
        """Does any live process exist in the subtree? None = could not tell."""
        return self.event("populated")

    def subtree(self) -> list[Cgroup]:
        """This cgroup and all below it, the deepest first. What vanishes meanwhile is passed over.

        Without recursion: an agent may nest deeper than the interpreter's stack.
        """
        found = [self]
        for group in found:
            found += [group.child(name) for name in _subdirectories(group.path)]
        return found[::-1]

    def pids(self) -> list[int]:
        """Process ids of the whole subtree, each once; zombies and what is gone meanwhile left out.

        A threaded cgroup answers ENOTSUP to `cgroup.procs`: there the thread ids are taken, and a signal to a
        pidfd of their process reaches it.
        """
        return list(self.places())

    def places(self) -> dict[int, str]:
        """The same, each with the path of the cgroup that it is in."""
        found: dict[int, str] = {}
        for group in self.subtree():
            for pid in group._own_pids():
                found[pid] = group.path
        return {pid: path for pid, path in found.items() if pid > 0}

    def _own_pids(self) -> list[int]:
        try:
            return [int(word) for word in self.read("cgroup.procs").split()]
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                return []
        try:
            return [_process_of(int(word)) for word in self.read("cgroup.threads").split()]
        except OSError:
            return []

    def wait(self, key: str, value: bool, deadline: float) -> bool | None:
        """Wait until `cgroup.events` shows `key` as `value`, or `deadline` (monotonic seconds) has passed.

        Returns the last answer, so `wait("populated", False, t) is False` is the proof. The file is opened and
        read before each poll, so a change between the two is never missed; a removed cgroup ends the wait.
        """
        while True:
            answer = self._wait_once(key, value, deadline)
            if answer is not None or time.monotonic() >= deadline:
                return self.event(key) if answer is None else answer

    def _wait_once(self, key: str, value: bool, deadline: float) -> bool | None:
        """None where the look could not be had, or the group went away during the wait: look again."""
        try:
            fd = os.open(f"{self.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # Gone for good, or a file whose rights this look gives back.
            answer = self.event(key)
            if answer is value or (answer is False and not os.path.lexists(self.path)):
                return answer
            time.sleep(0.005)
            return None
        try:
            return self._wait_on(fd, key, value, deadline)
        finally:
            os.close(fd)

    def _wait_on(self, fd: int, key: str, value: bool, deadline: float) -> bool | None:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        pause = FIRST_PAUSE
        while True:
            try:
                text = os.pread(fd, 4096, 0)
            except OSError:
                return None
            now = f"{key} 1".encode() in text.split(b"\n")
            left = deadline - time.monotonic()
            if now is value or left <= 0:
                return now
            # The kernel holds notifications of one file 10 ms apart, and sends none when the group is removed.
            if pause < 0.001:
                time.sleep(pause)  # poll(2) counts in milliseconds
            else:
                poll.poll(min(left, pause) * 1000)
            pause = min(pause * 2, POLL_MAX)

    def freeze(self) -> None:
        """Ask the kernel to freeze the subtree; `wait("frozen", True, …)` tells when. Raises OSError."""
        self.write("cgroup.freeze", "1")

    def thaw(self) -> None:
        """Thaw the group and every group below it that was frozen by itself. Raises nothing."""
        for group in self.subtree():
            try:
                group.write("cgroup.freeze", "0")
            except OSError:
                continue

    def remove(self) -> bool:
        """rmdir the subtree, deepest first; True if it is gone. Never unlinks a file, never waits."""
        for group in self.subtree():
            try:
                os.rmdir(group.path)
            except OSError:
                continue
        return not os.path.lexists(self.path)


def _process_of(tid: int) -> int:
    """The process that a thread belongs to (`Tgid` of /proc/TID/status), or 0."""
    try:
        with open(f"/proc/{tid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def _open_way(path: str) -> None:
    """Make the directories above `path` searchable again, where they are ours."""
    parts = path.split("/")
    for count in range(2, len(parts)):
        above = "/".join(parts[:count])
        if not os.access(above, os.X_OK, effective_ids=True):
            _give_rights_back(above, above)


def _give_rights_back(directory: str, path: str) -> None:
    for target, mode in ((directory, 0o755), (path, 0o755 if path == directory else 0o644)):
        try:
            os.chmod(target, mode)
        except OSError:
            continue


def _subdirectories(path: str) -> list[str]:
    for attempt in (1, 2):
        try:
            with os.scandir(path) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except PermissionError:
            if attempt == 1:
                _give_rights_back(path, path)
        except OSError:
            break
    return []
