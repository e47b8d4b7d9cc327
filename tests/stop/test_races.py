"""A start and a stop at the same moment, some hundred times: either the start sees the order, or the stop the box.

Two processes play side by side, so the rounds of one disturb those of the other. AGENTBOX_TEST_SEED replays.
"""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.beds.base import TREE
from tests.stop.stage import BACKEND
from tests.support import agentbox_env

SIDE_BY_SIDE = 2


def play(kind: str, backend: str, count: int, tmp_path: Path) -> dict[str, int]:
    """Play `count` rounds in all, in two processes with a home of their own; how they came out, counted."""
    first = int(os.environ.get("AGENTBOX_TEST_SEED") or random.randrange(1 << 30))
    players = []
    for number in range(SIDE_BY_SIDE):
        seed = first + number
        print(f"{kind} on {backend}: seed {seed}")
        argv = [sys.executable, "-m", "tests.stop.rounds", kind, backend, str(seed), str(count // SIDE_BY_SIDE)]
        folder = tmp_path / str(number)
        folder.mkdir()
        players.append(
            subprocess.Popen(argv, cwd=TREE, env=agentbox_env(folder / "home"), stdout=subprocess.PIPE, text=True)
        )
    results: list[dict[str, Any]] = [json.loads(player.communicate()[0] or "{}") for player in players]
    faults = [fault for result in results for fault in result.get("faults", ["it ended without a result"])]
    assert not faults, "\n".join(faults)
    assert sum(result["rounds"] for result in results) == count
    seen: collections.Counter[str] = collections.Counter()
    for result in results:
        seen.update(result["seen"])
    print(dict(seen))
    return dict(seen)


@pytest.mark.limit(600)
@pytest.mark.bed("host", "nspawn")
def test_run_against_kill(bed: str, tmp_path: Path) -> None:
    seen = play("start", BACKEND[bed], 300, tmp_path)
    assert seen["killed"] and seen["refused"]


@pytest.mark.limit(600)
@pytest.mark.bed("host", "nspawn")
def test_spawn_against_kill(bed: str, tmp_path: Path) -> None:
    """Three spawns a round."""
    seen = play("spawn", BACKEND[bed], 100, tmp_path)
    assert any("killed" in how for how in seen) and any("refused" in how for how in seen)


@pytest.mark.limit(600)
@pytest.mark.bed("host", "nspawn")
def test_launcher_killed_at_any_moment(bed: str, tmp_path: Path) -> None:
    seen = play("launcher", BACKEND[bed], 300, tmp_path)
    assert seen["ran on"] and seen["never ran"]


@pytest.mark.limit(600)
@pytest.mark.bed("host", "nspawn")
def test_emergency_stop_against_run(bed: str, tmp_path: Path) -> None:
    seen = play("emergency", BACKEND[bed], 500 if bed == "host" else 100, tmp_path)
    assert seen["killed"] and seen["refused"]
