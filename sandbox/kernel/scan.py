"""One pass over the process table, and one over the cgroup tree, made for thousands of each.

Each entry is read once; what vanishes meanwhile is passed over, and what can't be read is counted. Sources: proc(5),
cgroup-v2.rst (a directory's link count is 2 and one for each child, so a leaf is known without listing it).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.files import read_bytes
from sandbox.kernel.procfs import Stat, all_pids, parse_stat

MARK = b"AGENTBOX_CONTROL="
ENVIRON_BYTES = 1 << 20
CMDLINE_BYTES = 1 << 16
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
NOTHING_THERE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.EACCES, errno.EPERM)


@dataclass
class Table:
    """`stats`: the processes outside of the boxes that could be read, by pid; `environs`: raw environments of those
    that carry a mark. `unread`: why those that are alive (or zombies) can't be looked into, by pid.
    """

    stats: dict[int, Stat] = field(default_factory=dict)
    environs: dict[int, bytes] = field(default_factory=dict)
    unread: dict[int, str] = field(default_factory=dict)


def scan_processes(inside: Collection[int]) -> Table:
    """All processes but those of `inside`. Kernel threads are left out.

    OSError where there is no descriptor or memory left to look with.
    """
    table = Table()
    own = os.getpid()
    kernel = _kernel_parent()
    for pid in all_pids():
        if pid == own or pid in inside:
            continue
        try:
            raw = read_bytes(f"/proc/{pid}/environ", ENVIRON_BYTES)
            why = ""
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue
            if error.errno in SHORTAGE:
                raise
            # ESRCH: it has no memory: a kernel thread, one that just went, or (of newer kernels) a zombie.
            raw, why = b"", "" if error.errno == errno.ESRCH else (error.strerror or str(error)).lower()
        stat = _stat(pid)
        if stat is None or pid == kernel or (kernel and stat.ppid == kernel):
            continue
        if stat.state in "ZX":
            # A zombie that has threads is alive (proc(5)); of either the environment, and what it would tell, is gone.
            why = "its main thread has ended" if stat.threads > 1 else "a zombie"
        if why:
            table.unread[pid] = why
        if MARK in raw:
            table.environs[pid] = raw
        table.stats[pid] = stat
    return table


def variables(raw: bytes) -> dict[str, str]:
    """A raw environment as a dict; the first of a name counts, as for getenv(3)."""
    found: dict[str, str] = {}
    for entry in raw.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def cmdline(pid: int) -> bytes:
    """The raw command line, words ended by NUL; b"" for a kernel thread, a zombie, or what can't be read."""
    try:
        return read_bytes(f"/proc/{pid}/cmdline", CMDLINE_BYTES)
    except OSError:
        return b""


def hidden_processes(mount: str) -> int:
    """How many processes the cgroup tree at `mount` lists that /proc does not show (hidepid=2, proc(5))."""
    shown = set(all_pids())
    return sum(1 for _, pids in walk_members(mount) for pid in pids if pid > 0 and pid not in shown)


def proc_hides() -> bool:
    """Is /proc mounted so that it does not show other users' processes?"""
    try:
        lines = read_bytes("/proc/self/mountinfo").split(b"\n")
    except OSError:
        return False
    mounts = [line for line in lines if b" /proc " in line and b" - proc " in line]
    return bool(mounts) and (b"hidepid=2" in mounts[-1] or b"hidepid=invisible" in mounts[-1])


def children(path: str) -> list[str]:
    """The names of a cgroup's children; none where it is gone, or another user's lock is on it.

    OSError where this look itself failed (no descriptor, no memory): what it would have seen is not known.
    """
    try:
        if os.stat(path).st_nlink == 2:
            return []
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return []
        raise


def walk_members(top: str) -> Iterator[tuple[str, list[int]]]:
    """Each cgroup from `top` down, a parent before its children, with the processes that sit in it itself.

    OSError as `children`.
    """
    waiting = [top]
    while waiting:
        path = waiting.pop()
        yield path, own_pids(path)
        waiting += [f"{path}/{name}" for name in children(path)]


def own_pids(path: str) -> list[int]:
    """The processes of one cgroup, not of those below it. OSError as `children`."""
    try:
        text = read_bytes(f"{path}/cgroup.procs", 1 << 24)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return []
        if error.errno != errno.EOPNOTSUPP:
            raise
        # A threaded cgroup answers ENOTSUP: its threads are told one by one.
        return Cgroup(path).pids()
    return [int(word) for word in text.split()]


def _stat(pid: int) -> Stat | None:
    try:
        return parse_stat(read_bytes(f"/proc/{pid}/stat", 4096))
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return None


def _kernel_parent() -> int | None:
    """The pid of kthreadd, whose children are the kernel's own; None inside of a pid namespace."""
    stat = _stat(2)
    return 2 if stat and stat.comm == "kthreadd" else None


def raw_environ(pid: int) -> bytes | None:
    """The environment that a process was started with, raw; None if it can't be read."""
    try:
        return read_bytes(f"/proc/{pid}/environ", ENVIRON_BYTES)
    except OSError:
        return None


def folder_of(pid: int) -> str | None:
    """Its working directory, or None if it can't be read."""
    return _link(pid, "cwd")


def pid_namespace(pid: int) -> str | None:
    """What names its pid namespace (namespaces(7)), or None if it can't be read."""
    return _link(pid, "ns/pid")


def _link(pid: int, name: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return None
