"""A private home whose runs all end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.boxes.docker_engine import HOME
from sandbox.boxes.registry import local_backends
from tests.beds.dockerd import Dockerd
from tests.support import agentbox, wait_for


@pytest.fixture
def runs(home: Path) -> Iterator[Path]:
    """AGENTBOX_HOME; whatever lives of its runs afterwards is killed, with or without a record."""
    yield home
    boxes = [box for backend in local_backends(str(home)) for box in backend.list() if box.task_id is None]
    for run in sorted({box.run_id for box in boxes}):
        agentbox("kill", run)
    wait_for(lambda: not any(_left(home)), 20, "boxes are left")


@pytest.fixture
def engine(dockerd: Dockerd, runs: Path) -> Iterator[Dockerd]:
    """The session's engine; the containers of the home go with the test."""
    yield dockerd
    for container in dockerd.engine.containers(f"{HOME}={runs}"):
        dockerd.engine.remove(container["Id"])


def _left(home: Path) -> Iterator[str]:
    """Boxes that are still there; those of a launcher that is gone are removed."""
    for backend in local_backends(str(home)):
        for box in backend.list():
            if box.task_id is None and not backend.destroy(box):
                yield box.id
