"""Stories of verbs, crashes and reboots against a model; and every order of a start's and a stop's steps.

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
from tests.support import agentbox_env

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups at the top")
STORIES, STEPS = 12, 12


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
    seen = told("machine", tmp_path / "home", STORIES, STEPS, *seeds())
    assert seen["run 0"] and seen["kill 0"]


@ROOT
@pytest.mark.limit(7200)
@pytest.mark.full("many more, and longer")
def test_many_stories(tmp_path: Path) -> None:
    seen = told("machine", tmp_path / "home", 300, 30, *(seeds() or ["1"]))
    assert all(seen[f"finding {kind}"] for kind in ("orphan", "lost"))


def all_orders(scene: str, backend: str, most: int, tmp_path: Path) -> int:
    found = told("interleaving", tmp_path / "home", scene, backend, most, *(seeds() or ["1"]))
    assert not found["faults"], "\n".join(found["faults"])
    assert found["orders"] >= most
    assert len(found["seen"]) == 2, found
    return int(found["orders"])


@ROOT
@pytest.mark.limit(900)
@pytest.mark.parametrize("scene", ["run", "spawn", "task"])
def test_orders_of_a_start_and_a_stop(scene: str, tmp_path: Path) -> None:
    all_orders(scene, "cgroup", 120, tmp_path)


@pytest.mark.limit(900)
@pytest.mark.bed("nspawn")
@pytest.mark.parametrize("scene", ["run", "spawn"])
def test_orders_in_scopes(scene: str, tmp_path: Path) -> None:
    all_orders(scene, "systemd", 15, tmp_path)


@ROOT
@pytest.mark.limit(7200)
@pytest.mark.full("each order once, some thousand")
@pytest.mark.parametrize("scene", ["run", "spawn", "task"])
def test_every_order_of_a_start_and_a_stop(scene: str, tmp_path: Path) -> None:
    assert all_orders(scene, "cgroup", 0, tmp_path) > 500
