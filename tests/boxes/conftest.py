"""The backends under test, each in the beds where it can be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.boxes.base import Backend
from sandbox.boxes.cgroup import CgroupBackend
from sandbox.boxes.systemd import SystemdBackend
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
]
"""One line for each backend and bed: a factory that takes AGENTBOX_HOME. A further backend is a further line."""

WITH_CONTROLLERS = [_kind(CgroupBackend, "vm"), _kind(SystemdBackend, "vm")]


def _scene(make: Make, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(make, tmp_path / "home")
    yield scene
    scene.close()


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A backend and a run of its own."""
    yield from _scene(request.param, tmp_path)


@pytest.fixture(params=WITH_CONTROLLERS)
def limited_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """The same where the memory, pids and cpu controllers exist."""
    yield from _scene(request.param, tmp_path)
