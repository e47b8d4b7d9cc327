"""The backends under test, each in the beds where it can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.boxes.base import Backend
from sandbox.boxes.cgroup import CgroupBackend
from sandbox.boxes.docker import DockerBackend
from sandbox.boxes.systemd import SystemdBackend
from tests.boxes.containers import ContainerScene
from tests.boxes.scene import Scene

Make = Callable[[str], Backend]


def _kind(make: Make, bed: str) -> object:
    name = make("/").name
    return pytest.param(make, marks=pytest.mark.bed(bed), id=f"{name}-{bed}")


KINDS = [
    _kind(CgroupBackend, "host"),
    _kind(CgroupBackend, "nspawn"),
    _kind(SystemdBackend, "nspawn"),
    _kind(SystemdBackend, "nspawn-user"),
    _kind(DockerBackend, "dockerd"),
]
"""One line for each backend and bed: a factory that takes AGENTBOX_HOME. A further backend is a further line."""

WITH_CONTROLLERS = [_kind(CgroupBackend, "vm"), _kind(SystemdBackend, "vm")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a container these do not hold: the command is no child of the launcher and writes through a client, it
    sees a cgroup namespace of its own, and its ended box is kept. tests/docker shows the same there.
    """
    items[:] = [item for item in items if not (item.get_closest_marker("no_container") and _is_docker(item))]


def _is_docker(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and DockerBackend in callspec.params.values()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "no_container: not for backends whose boxes are containers")


def _scene(make: Make, tmp_path: Path) -> Iterator[Scene]:
    scene = (ContainerScene if make is DockerBackend else Scene)(make, tmp_path / "home")
    yield scene
    scene.close()


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A backend and a run of its own."""
    if request.param is DockerBackend:
        request.getfixturevalue("dockerd")
    yield from _scene(request.param, tmp_path)


@pytest.fixture(params=WITH_CONTROLLERS)
def limited_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """The same where the memory, pids and cpu controllers exist."""
    yield from _scene(request.param, tmp_path)
