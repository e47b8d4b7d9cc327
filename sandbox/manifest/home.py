"""Where the state lives: the home directory of agentbox, and the files of one run in it."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.errors import AgentboxError
from sandbox.manifest.ids import check_id, is_id

if TYPE_CHECKING:
    from collections.abc import Mapping

_PARTS = ("ctl", "ctl/tasks", "beat", "steer", "out")


@dataclass(frozen=True)
class Home:
    """`path`: absolute; it need not exist yet."""

    path: str

    @classmethod
    def locate(cls, environ: Mapping[str, str] | None = None) -> Home:
        """AGENTBOX_HOME, else /var/lib/agentbox for root, else agentbox below the XDG state directory.

        A relative XDG_STATE_HOME counts as unset (XDG Base Directory Specification, "Basics"); without HOME
        the home directory of the password database is taken. AgentboxError if nothing tells.
        """
        env = os.environ if environ is None else environ
        chosen = env.get("AGENTBOX_HOME", "")
        if chosen:
            if not os.path.isabs(chosen):
                raise AgentboxError(f"AGENTBOX_HOME is relative: {chosen!r}", fix="give an absolute path")
            return cls(chosen.rstrip("/") or "/")
        if os.geteuid() == 0:
            return cls("/var/lib/agentbox")
        state = env.get("XDG_STATE_HOME", "")
        if not os.path.isabs(state):
            state = os.path.join(_user_home(env), ".local/state")
        return cls(os.path.join(state, "agentbox"))

    @property
    def emergency_stop(self) -> str:
        """While this file exists nothing starts."""
        return os.path.join(self.path, "EMERGENCY_STOP")

    def ensure(self) -> Home:
        """Make the home and its runs directory, 0700 each. AgentboxError if it can't be, or isn't safe."""
        runs = os.path.join(self.path, "runs")
        try:
            os.makedirs(os.path.dirname(self.path) or "/", mode=0o700, exist_ok=True)
            _private_directory(self.path)
            _private_directory(runs)
        except OSError as error:
            raise _unusable(self.path, error) from error
        for path in (self.path, runs):
            if os.stat(path).st_mode & 0o022:
                raise AgentboxError(
                    f"others can write to {path}, and so could lift a stop order",
                    fix=f"chmod go-w {path}, or set AGENTBOX_HOME to a directory of your own",
                )
        if not os.access(runs, os.W_OK | os.X_OK, effective_ids=True):
            code = errno.EROFS if os.statvfs(runs).f_flag & os.ST_RDONLY else errno.EACCES
            raise _unusable(runs, OSError(code, os.strerror(code)))
        return self

    def runs(self) -> list[str]:
        """The ids of the runs that have a directory, sorted; other names are passed over."""
        try:
            with os.scandir(os.path.join(self.path, "runs")) as entries:
                return sorted(e.name for e in entries if is_id(e.name) and e.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _unusable(self.path, error) from error

    def run_dir(self, run_id: str) -> RunDir:
        """The files of `run_id`, whether they exist or not. AgentboxError if that can't be an id."""
        check_id(run_id, "run id")
        return RunDir(os.path.join(self.path, "runs", run_id), run_id)


@dataclass(frozen=True)
class RunDir:
    """Paths of one run's files; nothing but `create` touches the disk."""

    path: str
    run_id: str

    @property
    def manifest(self) -> str:
        """The run's record, one JSON object a line."""
        return os.path.join(self.path, "manifest.jsonl")

    @property
    def ctl(self) -> str:
        """The directory that a box sees read-only."""
        return os.path.join(self.path, "ctl")

    @property
    def control(self) -> str:
        """The run's order."""
        return os.path.join(self.path, "ctl/control")

    def task_order(self, task_id: str) -> str:
        """A task's own order."""
        return self._of_task("ctl/tasks", task_id, "")

    def beat(self, task_id: str) -> str:
        """The worker's boundary marks; written from inside the box, so never trusted for a kill."""
        return self._of_task("beat", task_id, "")

    def steer(self, task_id: str) -> str:
        """What changed for a task that was redirected."""
        return self._of_task("steer", task_id, ".jsonl")

    def out(self, task_id: str) -> str:
        """Output of a detached task, as bytes."""
        return self._of_task("out", task_id, ".log")

    def create(self) -> RunDir:
        """Make the run's directories, 0700; AgentboxError if the id is taken or the disk refuses.

        They appear at once: nobody finds a run that can't be given a stop order yet.
        """
        top = os.path.dirname(self.path)
        new = os.path.join(top, f".{self.run_id}.{os.urandom(4).hex()}")
        try:
            if os.path.lexists(self.path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            for part in ("", *_PARTS):
                _make(os.path.join(new, part).rstrip("/"))
            os.rename(new, self.path)
            fsync_directory(top)
        except OSError as error:
            # A half-made run would keep its id for good.
            for part in (*reversed(_PARTS), ""):
                with suppress(OSError):
                    os.rmdir(os.path.join(new, part))
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise AgentboxError(
                    f"run id {self.run_id} is taken: {self.path} exists", fix="choose another --run-id"
                ) from error
            raise _unusable(self.path, error) from error
        return self

    def _of_task(self, part: str, task_id: str, suffix: str) -> str:
        return os.path.join(self.path, part, check_id(task_id, "task id") + suffix)


def open_private(path: str, flags: int) -> int:
    """open(2) that makes the file, 0600 whatever the umask: its owner reads it again. Raises OSError."""
    fd = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with suppress(OSError):
        if os.fstat(fd).st_size == 0:
            os.fchmod(fd, 0o600)
    return fd


def fsync_directory(path: str) -> None:
    """Make the names in `path` durable (fsync(2): a file's own fsync does not cover its name)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _user_home(env: Mapping[str, str]) -> str:
    home = env.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise AgentboxError(
            f"no home directory: HOME is unset and uid {os.geteuid()} is not in the password database",
            fix="set AGENTBOX_HOME to an absolute path",
        ) from None


def _make(path: str) -> None:
    os.mkdir(path, 0o700)
    os.chmod(path, 0o700)  # the umask may have taken the owner's own bits


def _private_directory(path: str) -> None:
    """Make `path` unless it is a directory already, whose mode is its owner's affair."""
    try:
        _make(path)
    except OSError as error:
        # mkdir(2) may say EROFS or EACCES before it looks whether the name exists.
        try:
            mode = os.stat(path).st_mode
        except OSError:
            raise error from None
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None


def _unusable(path: str, error: OSError) -> AgentboxError:
    """The error of a state directory that can't be used, with the step that mends it."""
    elsewhere = "set AGENTBOX_HOME to a directory you can write"
    fix = {
        errno.EROFS: elsewhere,
        errno.ENOTDIR: f"move the file in its way, or {elsewhere}",
        errno.EEXIST: f"move the file in its way, or {elsewhere}",
        errno.ENOSPC: "free some space on that file system",
        errno.EDQUOT: "free some space: your quota is used up",
    }.get(error.errno or 0, f"make it yours with chown and chmod, or {elsewhere}")
    return AgentboxError(f"the state directory {path} can't be used: {error.strerror or error}", fix=fix)
