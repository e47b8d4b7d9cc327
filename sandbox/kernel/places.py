"""Who works in a directory, or holds a file open: processes by their cwd and descriptors. Source: proc(5)."""

from __future__ import annotations

import os

from sandbox.kernel.procfs import all_pids, read_stat

_DELETED = " (deleted)"


def working_in(path: str, *, uid: int | None = None, comm: str = "") -> tuple[list[int], int]:
    """Live processes whose working directory is `path` or below it, and how many could not be looked at.

    `uid`: those of one user only; `comm`: those whose name starts so. A directory that was deleted counts under
    the name that it had. Paths as this process's own root shows them. A plain user can't look at others'
    processes: those are not counted.
    """
    top = os.path.realpath(path)
    found, blind = [], 0
    for pid in all_pids():
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
            if uid is not None and owner != uid:
                continue
            where = os.readlink(f"/proc/{pid}/cwd").removesuffix(_DELETED)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended, is a zombie, or is the kernel's own
        except OSError:
            blind += owner == os.geteuid() and _could_be(pid, comm)
            continue
        if (where == top or where.startswith(top.rstrip("/") + "/")) and _could_be(pid, comm):
            found.append(pid)
    return found, blind


def _could_be(pid: int, comm: str) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state not in "ZX" and stat.comm.startswith(comm)


def holding(path: str, uid: int) -> tuple[list[int], int]:
    """Processes of a user that have the file at `path` open, and how many could not be looked at."""
    try:
        wanted = os.stat(path)
    except OSError:
        return [], 0
    found, blind = [], 0
    for pid in all_pids():
        try:
            if os.stat(f"/proc/{pid}").st_uid != uid:
                continue
            names = os.listdir(f"/proc/{pid}/fd")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            blind += _could_be(pid, "")
            continue
        if any(_same(f"/proc/{pid}/fd/{name}", wanted) for name in names):
            found.append(pid)
    return found, blind


def _same(path: str, wanted: os.stat_result) -> bool:
    try:
        seen = os.stat(path)
    except OSError:
        return False
    return (seen.st_dev, seen.st_ino) == (wanted.st_dev, wanted.st_ino)
