"""Ending a cgroup's whole subtree, and the proof of it.

`cgroup.kill` (Linux 5.14, cgroup-v2.rst) kills the subtree at once, also what forks meanwhile. What it
leaves is met one by one: a process whose main thread has exited, a threaded top (ENOTSUP), a task frozen by
the v1 freezer, a kernel without the file. Success is `populated 0` and nothing else.
"""

from __future__ import annotations

import os
import signal
import time

from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.files import read_bytes
from sandbox.kernel.freezer_v1 import release as release_v1

FIRST_LOOK = 0.25
"""Seconds that `cgroup.kill` has for itself before what it left is looked for."""


def kill_tree(group: Cgroup, deadline: float, *, use_cgroup_kill: bool = True) -> bool | None:
    """Kill all in `group` until the kernel says `populated 0` or `deadline` (monotonic) has passed.

    Returns `populated` at the end: False is the proof, True = something lives, None = could not tell.
    Needs no fork, no disk. `use_cgroup_kill=False` takes the way of kernels before 5.14.
    """
    if use_cgroup_kill and _write_kill(group):
        populated = group.wait("populated", False, min(deadline, time.monotonic() + FIRST_LOOK))
        if populated is False:
            return False
    pause = 0.002
    while True:
        _kill_one_by_one(group, use_cgroup_kill)
        populated = group.wait("populated", False, min(deadline, time.monotonic() + pause))
        if populated is False or time.monotonic() >= deadline:
            return populated
        pause = min(pause * 2, 0.2)


def signal_all(group: Cgroup, number: int, skip: frozenset[int] = frozenset()) -> list[int]:
    """Signal every process in the subtree through a pidfd; returns the pids that it could not be sent to.

    A pidfd is checked to be of the group still before the signal goes out, so a reused pid is never hit.
    """
    missed = []
    for pid in group.pids():
        if pid not in skip and not _signal(group, pid, number):
            missed.append(pid)
    return missed


def _write_kill(group: Cgroup) -> bool:
    try:
        group.write("cgroup.kill", "1")
    except OSError:
        return False
    return True


def _kill_one_by_one(group: Cgroup, use_cgroup_kill: bool) -> None:
    """One round: freeze so that nothing forks between list and signal, SIGKILL all, thaw, and the same again."""
    try:
        group.freeze()
    except OSError:
        pass  # killing goes on without it: the rounds repeat until the group is empty
    group.wait("frozen", True, time.monotonic() + 0.05)
    missed = signal_all(group, signal.SIGKILL)
    release_v1(group.pids())
    group.thaw()
    if use_cgroup_kill or missed:
        _write_kill(group)


def _signal(group: Cgroup, pid: int, number: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        # pidfd_open(2) refuses a leader that has exited while its threads run on: kill(2) reaches them.
        return _signal_by_number(group, pid, number)
    try:
        if not _is_member(group, pid):
            return True
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _signal_by_number(group: Cgroup, pid: int, number: int) -> bool:
    if not _is_member(group, pid):
        return True
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return True


def _is_member(group: Cgroup, pid: int) -> bool:
    """Is `pid` in the subtree now? Asked of the process itself; where it can't say, the fresh list counts."""
    try:
        lines = read_bytes(f"/proc/{pid}/cgroup").split(b"\n")
    except OSError:
        return pid in group.pids()
    path = next((os.fsdecode(line[3:]) for line in lines if line.startswith(b"0::")), None)
    return path is not None and group.contains(path)
