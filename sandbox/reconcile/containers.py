"""The observer of container engines: boxes that no cgroup of this host shows, and whether an engine answers.

An engine is asked only where one is set up: its client library is large, and most machines have none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.boxes.base import Proof
from sandbox.boxes.registry import backend
from sandbox.manifest.home import Home
from sandbox.reconcile.boxes import SeenBox

if TYPE_CHECKING:
    from sandbox.reconcile.engine_word import Disagreement

ASK_SECONDS = 5.0
SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")


def engine_address() -> str:
    """What names an engine here: DOCKER_HOST, a docker context, or a socket that this user may use; "" if nothing."""
    if host := os.environ.get("DOCKER_HOST"):
        return host
    if os.environ.get("DOCKER_CONTEXT"):
        return f"context {os.environ['DOCKER_CONTEXT']}"
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    paths = (*SOCKETS, f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock")
    return next((f"unix://{path}" for path in paths if os.access(path, os.W_OK)), "")


@dataclass(frozen=True)
class Stranger:
    """A running container that is none of ours. `created`: seconds since the epoch."""

    name: str
    image: str
    created: float


Contained = tuple[list[SeenBox], list[Stranger], "list[Disagreement]"]


def read_containers(home: Home, only: str | None = None) -> Contained:
    """A box a run for its containers, with the engine's word on whether they live; strangers; and disagreements.

    Raises Unavailable.
    """
    from sandbox.reconcile.engine_word import disagreements

    return _ours(home, only), _strangers(), disagreements(home, only)


def _strangers() -> list[Stranger]:
    """What runs on the engine without a label of agentbox."""
    from sandbox.boxes.docker_engine import RUN, Engine

    engine = Engine()
    rows = engine.bounded(ASK_SECONDS, lambda: engine.api.containers())
    return [
        Stranger(str((row.get("Names") or [row["Id"]])[0]).lstrip("/"), str(row.get("Image")), float(row["Created"]))
        for row in rows
        if RUN not in (row.get("Labels") or {})
    ]


def _ours(home: Home, only: str | None) -> list[SeenBox]:
    docker = backend("docker", home.path)
    found: dict[tuple[str, str | None], SeenBox] = {}
    for box in docker.list():
        if only is not None and box.run_id != only:
            continue
        path: str | None = os.path.dirname(box.cgroup) if box.cgroup and box.task_id is not None else box.cgroup
        seen = found.setdefault((box.run_id, path), SeenBox("docker", box.run_id, path, populated=False))
        if box.task_id is None:
            seen.inode = box.cgroup_inode
            continue
        _add(seen, box.task_id, box.id, docker.populated(box))
    return list(found.values())


def _add(seen: SeenBox, task_id: str, container: str, proof: Proof) -> None:
    seen.tasks.setdefault(task_id, [])
    seen.containers[task_id] = container
    if proof == "alive":
        seen.alive.add(task_id)
        seen.populated = True
    elif proof == "unknown" and not seen.populated:
        seen.populated = None


def merge(boxes: list[SeenBox], contained: list[SeenBox]) -> list[SeenBox]:
    """Boxes by cgroup and by engine as one list: a container whose cgroup is seen here is that same box."""
    merged = list(boxes)
    by_path: dict[str | None, SeenBox] = {box.path: box for box in boxes if box.path}
    for one in contained:
        known = by_path.get(one.path)
        if known is None:
            merged.append(one)
            continue
        known.containers.update(one.containers)
        known.alive |= one.alive
        if one.alive:
            known.populated = True
    return merged
