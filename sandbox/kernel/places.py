"""Who works in a directory, or holds a file open: processes by their cwd and descriptors. Source: proc(5)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from sandbox.kernel.procfs import all_pids, read_stat

_DELETED = " (deleted)"
_TICKS = os.sysconf("SC_CLK_TCK")


def working_in(path: str, *, uid: int | None = None, comm: str = "", since: float = 0.0) -> tuple[list[int], int]:
    """Live processes whose working directory is `path` or below it, and how many of our own could not be looked at.

    `uid`: those of one user only; `comm`: those whose name starts so. `since` (seconds since 1970): one that can't be
    looked at and is older does not count. Paths as this process's own root shows them; a directory that was deleted
    counts under the name that it had.
    """
    top = os.path.realpath(path)
    found, blind = [], 0
    for pid, owner in _processes(uid):
        try:
            where = os.readlink(f"/proc/{pid}/cwd").removesuffix(_DELETED)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, is a zombie, or is the kernel's own
        except OSError:
            blind += owner == os.geteuid() and _may_be(pid, comm, since)
            continue
        if (where == top or where.startswith(top.rstrip("/") + "/")) and _may_be(pid, comm):
            found.append(pid)
    return found, blind


def holding(path: str, *, uid: int, comm: str = "") -> tuple[list[int], int]:
    """Processes of a user that have the file at `path` open, and how many named `comm`… could not be looked at."""
    try:
        wanted = os.stat(path)
    except OSError:
        return [], 0
    found, blind = [], 0
    for pid, _ in _processes(uid):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            blind += _may_be(pid, comm)
            continue
        if any(_same(f"/proc/{pid}/fd/{name}", wanted) for name in names):
            found.append(pid)
    return found, blind


def _processes(uid: int | None) -> Iterator[tuple[int, int]]:
    """Pid and user of each process, or of one user's."""
    for pid in all_pids():
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
        except OSError:
            continue
        if uid in (None, owner):
            yield pid, owner


def _may_be(pid: int, comm: str, since: float = 0.0) -> bool:
    """Is it alive, named so, and not older?"""
    stat = read_stat(pid)
    if stat is None or stat.state in "ZX" or not stat.comm.startswith(comm):
        return False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / _TICKS
    return time.time() - age >= since - 1.0


def _same(path: str, wanted: os.stat_result) -> bool:
    try:
        seen = os.stat(path)
    except OSError:
        return False
    return (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)
