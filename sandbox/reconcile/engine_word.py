"""Where a container engine and the kernel disagree on whether a container lives.

Each is a fact of its own: the engine tells what it was told of (its shim may be gone, its supervisor hung), the
cgroup what is there. Only an engine of this host is held against it, on directories that are there and ours, and
only what several looks in a row find: an end takes the engine a moment to notice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sandbox.boxes.docker_containers import own_directory
from sandbox.boxes.docker_engine import Container, Engine, NotThere
from sandbox.boxes.docker_slices import run_of
from sandbox.boxes.ownership import is_ours
from sandbox.kernel.cgroup import Cgroup
from sandbox.manifest.home import Home

LOOKS = 4
PAUSE = 0.25
"""Seconds between two of them."""
RUNNING = ("running", "paused")
OVER = ("exited", "dead")


@dataclass(frozen=True)
class Disagreement:
    """`status`: in the engine's word; `populated`: in the kernel's, of the task's cgroup at `path`, with its `pids`."""

    run_id: str
    task_id: str
    container: str
    status: str
    path: str
    populated: bool
    pids: tuple[int, ...]

    def as_evidence(self) -> dict[str, Any]:
        return {
            "container": self.container,
            "engine_status": self.status,
            "cgroup": self.path,
            "cgroup_populated": self.populated,
            "pids": list(self.pids)[:50],
        }


def disagreements(home: Home, only: str | None = None) -> list[Disagreement]:
    """Those that stay over all looks. Raises Unavailable."""
    engine = Engine()
    found = [one for row in engine.ours(home.path, only) if (one := _look(engine, home, row["Id"], row["State"]))]
    # What runs in the cgroup of an ended container may belong to one that took its place.
    taken = {one.path for one in found if one.status in RUNNING}
    found = [one for one in found if one.status in RUNNING or one.path not in taken]
    for _ in range(LOOKS - 1 if found else 0):
        time.sleep(PAUSE)
        found = list(_again(engine, home, found))
    return found


def _look(engine: Engine, home: Home, container: str, listed: str) -> Disagreement | None:
    """One look. `listed`: the state that the list told, to ask no more of those that are neither."""
    if listed not in (*RUNNING, *OVER):
        return None
    try:
        state = engine.inspect(container)
    except NotThere:
        return None
    path = own_directory(state, lambda parent: is_ours(parent, run_of(parent), home.path))
    if path is None or _engine_says(state) is None:
        return None
    group = Cgroup(path)
    populated = group.populated()
    if populated is None or populated is _engine_says(state):
        return None
    return Disagreement(state.run_id, state.task_id, state.name, state.status, path, populated, tuple(group.pids()))


def _engine_says(state: Container) -> bool | None:
    return True if state.status in RUNNING else False if state.status in OVER else None


def _again(engine: Engine, home: Home, before: list[Disagreement]) -> Iterator[Disagreement]:
    for one in before:
        fresh = _look(engine, home, one.container, one.status) if os.path.isdir(one.path) else None
        if fresh is not None and (fresh.status, fresh.populated) == (one.status, one.populated):
            yield fresh
