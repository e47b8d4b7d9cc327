"""The leak gate: what was not there before a test must not be there after it.

Looks at the kernel, not at what the project believes: cgroups and transient units named agentbox*, processes
that carry the test's mark in their environment, mounts, containers labelled agentbox.run, worktrees of the
project's own repository. What is left fails the test and is then ended, but only what is proven to be the
test's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.boxes.ownership import home_of
from tests.beds import space
from tests.beds.base import TREE, sweep
from tests.beds.dockerd import Engine

GUARD_SECONDS = 50.0
PATIENCE = 5.0  # seconds for what is on its way out: a reaped scope, a container being removed
KEPT = ("agentbox", "agentbox.slice")  # the parent of all runs may stay, empty
LABEL = "agentbox.run"


@dataclass
class State:
    """What is there: sets of names, comparable."""

    cgroups: set[str] = field(default_factory=set)
    units: set[str] = field(default_factory=set)
    processes: set[str] = field(default_factory=set)
    mounts: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    worktrees: set[str] = field(default_factory=set)

    def beyond(self, before: State) -> State:
        """What is here and was not there `before`."""
        return State(**{name: mine - getattr(before, name) for name, mine in vars(self).items()})

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return "; ".join(f"{kind}: {name}" for kind, names in vars(self).items() for name in sorted(names))


class Session:
    """A test session's marks, and whether it is alone on the machine.

    While another session runs, a cgroup or mount may be that one's: then only what carries our mark, or belongs to
    our temporary directory, is ours.
    """

    def __init__(self, own_machine: bool, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.own_machine = own_machine
        self.guard = None if own_machine else start_guard(self.mark, str(folder))
        path = Path(tempfile.gettempdir()) / f"agentbox-tests-{os.geteuid()}.lock"
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Whether no other session of this user holds the lock."""
        if self.own_machine:
            return True
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fcntl.flock(self.lock, fcntl.LOCK_SH)  # a failed conversion drops the lock held, flock(2)
            return False
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        return True

    def close(self) -> None:
        """Let go of the lock and of the guard."""
        os.close(self.lock)
        if self.guard is not None:
            self.guard.kill()
            self.guard.communicate()


def start_guard(*mark_and_folder: str) -> subprocess.Popen[bytes]:
    """Start `main` beside the session: it sees the session's end by the end of its input."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.leaks", space.owner(), *mark_and_folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=TREE,
        env=space.clean_env(),
        start_new_session=True,
    )


def main(owner: str, mark: str = "", folder: str = "") -> None:
    """Wait until the session has ended; if it was killed, end its beds, its processes and the runs in `folder`.

    A bed does not always end with its session: systemd-nspawn's container may outlive it.
    """
    sys.stdin.buffer.read()
    sweep(owner)
    if mark and folder:
        _end_all(mark, Path(folder))


def _end_all(mark: str, folder: Path) -> None:
    deadline = time.monotonic() + GUARD_SECONDS
    mount = space.cgroup2_mount()
    while time.monotonic() < deadline:
        processes = _processes(mark)
        for name in processes:
            _kill(int(name.split()[0]), mark)
        cgroups = [Path(path) for path in sorted(_cgroups(mount) if mount else ())]
        ours = [path for path in cgroups if any(home.is_relative_to(folder) for home in _homes(path))]
        for path in ours:
            space.end_tree(path, timeout=1)
        if not processes and not ours:
            return
        time.sleep(0.05)


class Gate:
    """One test's gate: made before it, `leaks` asked after it."""

    def __init__(self, session: Session, engine: Callable[[], Engine | None]) -> None:
        self.session = session
        self.engine = engine
        # One that is about to exec has no argv for a moment: it is known by its pid alone.
        self.known = _ours_by_pid(session.mark)
        self.before = self._look()

    def leaks(self) -> str:
        """What the test left, after waiting for it to vanish and before ending it; "" if nothing."""
        deadline = time.monotonic() + PATIENCE
        while left := self._left():
            if time.monotonic() > deadline:
                text = str(left)
                self._end(left)
                return text
            time.sleep(0.02)
        return ""

    def _left(self) -> State:
        left = self._look().beyond(self.before)
        left.processes = {name for name in left.processes if _pid(name) not in self.known}
        left.cgroups = {path for path in left.cgroups if not self._is_foreign(Path(path))}
        if left.cgroups and not self.session.alone():
            left.cgroups = {path for path in left.cgroups if self._is_ours(Path(path))}
        if left.mounts and not self.session.alone():
            left.mounts = {name for name in left.mounts if not self._is_another_sessions(name)}
        return left

    def _is_another_sessions(self, mount: str) -> bool:
        """Is it in a temporary directory, and not in ours?"""
        where = Path(mount.split(" ")[1])
        return where.is_relative_to(tempfile.gettempdir()) and not where.is_relative_to(self.session.folder)

    def _look(self) -> State:
        engine, mount = self.engine(), space.cgroup2_mount()
        return State(
            cgroups=_cgroups(mount) if mount else set(),
            units=_units(),
            processes=_processes(self.session.mark),
            mounts=_mounts(everywhere=self.session.own_machine),
            containers=_containers(engine) if engine else set(),
            worktrees=_names(TREE / ".git" / "worktrees"),
        )

    def _is_ours(self, cgroup: Path) -> bool:
        marked = any(_marked(pid, self.session.mark) for pid in space.members(cgroup))
        return marked or any(home.is_relative_to(self.session.folder) for home in _homes(cgroup))

    def _is_foreign(self, cgroup: Path) -> bool:
        """Made for homes elsewhere, or the parent of nothing but such: a person's or another session's."""
        if self.session.own_machine or self._is_ours(cgroup):
            return False
        try:
            inside = [_homes(path) for path in cgroup.iterdir() if path.is_dir()] if cgroup.name in KEPT else []
        except FileNotFoundError:  # it went meanwhile, and is nobody's leak
            return True
        return bool(_homes(cgroup)) or (bool(inside) and all(inside))

    def _end(self, left: State) -> None:
        for name in left.processes:
            _kill(_pid(name), self.session.mark)
        for path in map(Path, sorted(left.cgroups)):
            if self.session.own_machine or self._is_ours(path) or not space.populated(path):
                space.end_tree(path)
        for name in left.mounts:
            _unmount(name)
        engine = self.engine()
        for name in left.containers if engine else ():
            assert engine is not None
            engine.remove(name.split()[0])


def _homes(cgroup: Path) -> list[Path]:
    """The homes that the boxes at and above a cgroup were made for."""
    return [Path(home) for path in (cgroup, *cgroup.parents) if (home := home_of(str(path)))]


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def _cgroups(mount: Path) -> set[str]:
    """The cgroups named agentbox* and all below them, but for an empty KEPT one; not the beds' own."""
    found = set()
    for where, names, _ in os.walk(mount):
        names[:] = [name for name in names if not name.startswith(space.PREFIX + ".")]
        inside = "/agentbox" in where[len(str(mount)) :]
        for name in names:
            path = os.path.join(where, name)
            if inside or (name.startswith("agentbox") and (name not in KEPT or space.populated(Path(path)))):
                found.add(path)
    return found


def _units() -> set[str]:
    """Transient units of the managers that we see; a failed one keeps its file until it is collected."""
    folders = ["/run/systemd/transient"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        folders.append(f"{runtime}/systemd/transient")
    names = {name for folder in folders for name in _names(Path(folder))}
    return {name for name in names if name.startswith("agentbox-")}


def _marked(pid: int, mark: str) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{space.MARK}={mark}".encode() in environ


def _in_bed(pid: int) -> bool:
    """Whether the process belongs to a bed, which lasts longer than a test."""
    try:
        return f":/{space.PREFIX}." in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def _children() -> set[int]:
    """Our own children: one that has not exec'd shows our environment as it was at our start."""
    found: set[int] = set()
    for thread in _names(Path("/proc/self/task")):
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in Path(f"/proc/self/task/{thread}/children").read_text().split()}
    return found


def _ours_by_pid(mark: str) -> set[int]:
    marked = {int(name) for name in os.listdir("/proc") if name.isdigit() and _marked(int(name), mark)}
    return (marked | _children()) - {os.getpid()}


def _processes(mark: str) -> set[str]:
    """`PID argv` of the live processes that carry the mark or are our children; a zombie has no argv."""
    found = set()
    for pid in _ours_by_pid(mark):
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(argv) and not _in_bed(pid):
                found.add(f"{pid} {' '.join(argv).strip()}")
    return found


def _pid(name: str) -> int:
    return int(name.split()[0])


def _kill(pid: int, mark: str) -> None:
    """SIGKILL the very process that is marked (or our child), not one that got its number meanwhile."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if _marked(pid, mark) or pid in _children():
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def _mounts(everywhere: bool) -> set[str]:
    """`ROOT MOUNTPOINT` of each mount, or only of those where a test may make one.

    A user's runtime directory comes and goes with logins, not with tests.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        mounts = {" ".join(line.split(" ")[3:5]) for line in lines}
    return {name for name in mounts if _is_test_path(name.split(" ")[1], everywhere)}


def _is_test_path(path: str, everywhere: bool) -> bool:
    if everywhere:
        return not path.startswith(("/run/user/", "/run/credentials/"))
    return path.startswith((tempfile.gettempdir() + "/", str(TREE), "/sys/fs/cgroup/")) or "agentbox" in path


def _unmount(name: str) -> None:
    target = name.split(" ")[1].encode().decode("unicode_escape")
    subprocess.run(["umount", "-l", target], check=False, capture_output=True)


def _containers(engine: Engine) -> set[str]:
    try:
        return {f"{c['Id']} {c['State']} {c['Labels'].get(LABEL)}" for c in engine.containers(LABEL)}
    except OSError:  # a test has stopped the engine
        return set()


if __name__ == "__main__":
    main(*sys.argv[1:])
