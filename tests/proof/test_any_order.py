"""Stories of verbs, crashes and reboots against a model; and a start's and a stop's steps in every order.

AGENTBOX_TEST_SEED replays what was drawn; without it the stories are always the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.beds.base import TREE
from tests.beds.dockerd import Dockerd
from tests.support import agentbox_env

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups at the top")
STORIES, STEPS = 12, 12
SCENES = ("run", "spawn", "task")
SCOPES, CONTAINERS = 40, 8
"""Of the orders that bring each pair of steps about, how many are played by default, drawn by the seed."""
WHOLE_ORDERS = 2000
ALL_PAIRS = "each pair of steps in both orders: some hundred orders a scene, half a second to two each"


def told(module: str, home: Path, *args: object) -> dict[str, Any]:
    """What a player of tests.proof says at its end."""
    argv = [sys.executable, "-m", f"tests.proof.{module}", *map(str, args)]
    done = subprocess.run(argv, cwd=TREE, env=agentbox_env(home), capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def seeds() -> list[str]:
    return [seed] if (seed := os.environ.get("AGENTBOX_TEST_SEED")) else []


@ROOT
@pytest.mark.limit(600)
def test_stories(tmp_path: Path) -> None:
    seen = told("machine", tmp_path / "home", "cgroup", STORIES, STEPS, *seeds())
    assert all(seen[word] for word in ("run 0", "kill 0", "redirect 0"))


@ROOT
@pytest.mark.limit(7200)
@pytest.mark.full("many more, and longer")
def test_many_stories(tmp_path: Path) -> None:
    seen = told("machine", tmp_path / "home", "cgroup", 300, 30, *(seeds() or ["1"]))
    assert all(seen[word] for word in ("finding orphan", "finding lost", "keep", "modify", "drop"))


@pytest.mark.limit(900)
@pytest.mark.bed("dockerd")
def test_stories_in_containers(dockerd: Dockerd, tmp_path: Path) -> None:
    seen = told("machine", tmp_path / "home", "docker", 4, 10, *(seeds() or ["1"]))
    assert all(seen[word] for word in ("run 0", "kill 0", "redirect 0"))


@pytest.mark.limit(7200)
@pytest.mark.bed("dockerd")
@pytest.mark.full("many more, and longer")
def test_many_stories_in_containers(dockerd: Dockerd, tmp_path: Path) -> None:
    seen = told("machine", tmp_path / "home", "docker", 60, 20, *(seeds() or ["1"]))
    assert all(seen[word] for word in ("finding orphan", "finding lost", "keep", "modify", "drop"))


def orders(scene: str, backend: str, how: str, most: int, home: Path) -> dict[str, Any]:
    found = told("interleaving", home, scene, backend, how, most, *(seeds() or ["1"]))
    assert not found["faults"], "\n".join(found["faults"])
    assert not found["against_the_rules"]
    assert len(found["seen"]) == 2, found
    return found


def every_pair(scene: str, backend: str, home: Path) -> None:
    """Each step of a start before and after each of a stop, but for what can't be."""
    found = orders(scene, backend, "pairs", 0, home)
    assert found["missing"] == []
    starts, stops = ({step.split(": ")[1] for step in found["steps"][side]} for side in ("start", "stop"))
    assert starts >= {"look", "task.intent", "create", "fork", "look 2", "task.started", "release", "look 3"}
    assert {step.rpartition(" ")[2] for step in stops} >= {"order", "freeze", "kill", "receipt"}


@ROOT
@pytest.mark.limit(900)
@pytest.mark.parametrize("scene", SCENES)
def test_every_pair_of_steps_of_a_start_and_a_stop(scene: str, tmp_path: Path) -> None:
    every_pair(scene, "cgroup", tmp_path / "home")


@pytest.mark.limit(900)
@pytest.mark.bed("nspawn")
@pytest.mark.parametrize("scene", SCENES)
def test_pairs_in_scopes(scene: str, tmp_path: Path) -> None:
    assert orders(scene, "systemd", "pairs", SCOPES, tmp_path / "home")["played"] == SCOPES


@pytest.mark.limit(3600)
@pytest.mark.bed("nspawn")
@pytest.mark.full(ALL_PAIRS)
@pytest.mark.parametrize("scene", SCENES)
def test_every_pair_in_scopes(scene: str, tmp_path: Path) -> None:
    every_pair(scene, "systemd", tmp_path / "home")


@pytest.mark.limit(900)
@pytest.mark.bed("dockerd")
@pytest.mark.parametrize("scene", SCENES)
def test_pairs_in_containers(dockerd: Dockerd, scene: str, tmp_path: Path) -> None:
    assert orders(scene, "docker", "pairs", CONTAINERS, tmp_path / "home")["played"] == CONTAINERS


@pytest.mark.limit(3600)
@pytest.mark.bed("dockerd")
@pytest.mark.full(ALL_PAIRS)
@pytest.mark.parametrize("scene", SCENES)
def test_every_pair_in_containers(dockerd: Dockerd, scene: str, tmp_path: Path) -> None:
    if scene == "spawn":
        # How long the engine calls the main container running after its end is chance, and so which steps there are.
        orders(scene, "docker", "pairs", 0, tmp_path / "home")
    else:
        every_pair(scene, "docker", tmp_path / "home")


@ROOT
@pytest.mark.limit(3600)
@pytest.mark.full("as they come: each a start and a stop step by step")
@pytest.mark.parametrize("scene", SCENES)
def test_whole_orders_as_they_are_drawn(scene: str, tmp_path: Path) -> None:
    found = orders(scene, "cgroup", "drawn", WHOLE_ORDERS, tmp_path / "home")
    assert found["played"] == WHOLE_ORDERS and found["orders"] > WHOLE_ORDERS // 2
