"""Freeing tasks that were frozen through cgroup v1 (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst).

A task in a frozen v1 freezer group stays in state D even after SIGKILL. Moved to the top group, which can't be
frozen, it thaws and dies. Only root can do so, and only root could have frozen it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sandbox.kernel.files import read_bytes


def release(pids: Iterable[int]) -> None:
    """Move those of `pids` that sit in a v1 freezer group to its top. Raises nothing."""
    frozen = [pid for pid in pids if _in_freezer_group(pid)]
    top = _freezer_mount() if frozen else None
    for pid in frozen if top else ():
        try:
            with open(f"{top}/cgroup.procs", "w") as file:
                file.write(str(pid))
        except OSError:
            continue


def _in_freezer_group(pid: int) -> bool:
    try:
        lines = read_bytes(f"/proc/{pid}/cgroup").split(b"\n")
    except OSError:
        return False
    rows = (line.split(b":", 2) for line in lines)
    return any(len(row) == 3 and b"freezer" in row[1].split(b",") and row[2] != b"/" for row in rows)


def _freezer_mount() -> str | None:
    try:
        lines = read_bytes("/proc/self/mountinfo").split(b"\n")
    except OSError:
        return None
    for line in lines:
        head, _, tail = line.partition(b" - cgroup ")
        if tail and b"freezer" in tail.split(b" ")[-1].split(b","):
            return os.fsdecode(head.split(b" ")[4])
    return None
