"""Is this process inside of a box, and of which? Told by its own cgroup, never by its environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.mounts import cgroup2_mount, cgroup_of

TOP = "agentbox"
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_CGROUP = rf"/{TOP}/(?P<run>{_ID})/(?P<task>{_ID})"
_SCOPE = r"/agentbox\.slice/agentbox-(?P<slice>[^/]+)\.slice/(?P<scope>[^/]+\.(?:scope|slice))"
_BOX = re.compile(f"(?:{_CGROUP}|{_SCOPE})(?=/|$)")


@dataclass(frozen=True)
class OwnBox:
    """`path`: the task's directory in the cgroup2 mount; `parents`: those of all runs around it, outermost first."""

    run_id: str
    path: str
    parents: tuple[str, ...]


def own_box(path: str | None = None) -> OwnBox | None:
    """The innermost box around this process (or around the cgroup directory `path`), or None."""
    where = path or cgroup_of(mount=cgroup2_mount())
    found = list(_BOX.finditer(where or ""))
    if not where or not found:
        return None
    last = found[-1]
    run_id = _run_of(last)
    parents = tuple(where[: m.end()].rsplit("/", 1)[0] for m in found)
    return OwnBox(run_id, where[: last.end()], parents)


def runs_around(path: str) -> tuple[str, ...]:
    """The runs whose boxes the cgroup directory `path` is in, the outermost first."""
    return tuple(_run_of(match) for match in _BOX.finditer(path))


def _run_of(box: re.Match[str]) -> str:
    return str(box["run"] or box["slice"].replace("\\x2d", "-"))


def is_parent(path: str) -> bool:
    """Is cgroup directory `path` a run's parent, read from the top: `agentbox` may be the id of a run or a task."""
    below = own_box(f"{path}/x") if os.path.basename(os.path.dirname(path)) == TOP else None
    return below is not None and below.parents[-1] == path


def inside(parent: str, own: str | None = None) -> bool:
    """Does this process, whose cgroup directory is `own`, live below the cgroup directory `parent`?"""
    own = own or cgroup_of()
    if own is None:  # from another cgroup namespace no path leads here, but the kernel lists all the same
        return os.getpid() in Cgroup(parent).pids()
    return (own + "/").startswith(parent.rstrip("/") + "/")
