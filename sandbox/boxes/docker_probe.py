"""Does the engine really run containers, and do they end? Tried on one, which is removed after."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from sandbox.boxes.base import BoxSpec, Command, Unavailable
from sandbox.boxes.docker_containers import Containers
from sandbox.boxes.docker_engine import ASK_SECONDS
from sandbox.boxes.ownership import probe_id
from sandbox.errors import AgentboxError
from sandbox.kernel.spawn import ChildFailed

if TYPE_CHECKING:
    from sandbox.boxes.docker import DockerBackend

IMAGES = 5
"""How many images are tried for one with a shell."""


def try_one(backend: DockerBackend, containers: Containers) -> None:
    """Raises Unavailable, with nothing left of the container."""
    engine = containers.engine
    images = engine.bounded(ASK_SECONDS, lambda: engine.api.images())
    names = [str(image["Id"]) for image in sorted(images, key=lambda image: image["Size"])]
    if not names:
        raise Unavailable("the engine has no image to try", fix="build one (scripts/images base), or docker pull one")
    for last, name in ((name is names[:IMAGES][-1], name) for name in names[:IMAGES]):
        try:
            _try(backend, containers, name)
            return
        except Unavailable:
            raise
        except (AgentboxError, ChildFailed) as error:
            if last:
                raise Unavailable(f"no container could be started: {error}", fix="see the engine's log") from None


def _try(backend: DockerBackend, containers: Containers, image: str) -> None:
    run_id = probe_id()
    options = {"image": image, "interactive": True, "tty": False, "mount_cwd": False, "network": "none"}
    box, _ = backend.create(BoxSpec(backend.home, run_id, "main", "", container=options))
    child = None
    try:
        child = backend.start(box, Command([b"sh"], {}, [("stdio", _waiting_stdio)]))
        child.release()
        proof = backend.populated(box), backend.kill(box, time.monotonic() + 4 * ASK_SECONDS)
        if proof != ("alive", "empty"):
            raise Unavailable(f"a container was {proof[0]} after its start, {proof[1]} after its kill")
    finally:
        with suppress(AgentboxError):
            containers.remove(box)
        if child:
            child.abandon()
        backend.destroy(box)
        for parent in backend.parents(run_id):
            backend.destroy(parent)


def _waiting_stdio() -> None:
    """In the child: a stdin that never ends, and no output."""
    reader, _ = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    for source, target in ((reader, 0), (null, 1), (null, 2)):
        os.dup2(source, target)
