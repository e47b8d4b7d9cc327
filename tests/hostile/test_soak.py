"""Hours of runs, compressed: eight processes side by side in one home, and a watch that sees it all."""

from __future__ import annotations

import collections
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.registry import local_backends
from sandbox.control.status import status
from sandbox.kernel.procfs import read_stat
from sandbox.manifest.home import Home
from tests.beds.base import TREE
from tests.emergency.fleet import Watcher, watching
from tests.support import agentbox, agentbox_env, is_alive

SIDE_BY_SIDE = 8
SLACK = 4 << 20  # bytes of memory that an allocator may keep


def measure(pid: int) -> tuple[int, int]:
    """Descriptors and resident bytes. proc_pid_statm(5)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return len(os.listdir(f"/proc/{pid}/fd")), pages * os.sysconf("SC_PAGE_SIZE")


def play(home: Path, count: int, watch: Watcher) -> list[tuple[int, int]]:
    """`count` rounds in each process; what the watch held meanwhile."""
    first = int(os.environ.get("AGENTBOX_TEST_SEED") or random.randrange(1 << 30))
    print(f"seeds from {first}")
    players = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.soak", str(first + number), str(count)],
            cwd=TREE,
            env=agentbox_env(home),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(SIDE_BY_SIDE)
    ]
    held = []
    while any(player.poll() is None for player in players):
        held.append(measure(watch.process.pid))
        time.sleep(0.1)
    results: list[dict[str, Any]] = [json.loads(player.communicate()[0] or "{}") for player in players]
    assert not [fault for one in results for fault in one.get("faults", ["it ended without a result"])]
    assert sum(one["rounds"] for one in results) == count * SIDE_BY_SIDE
    seen: collections.Counter[str] = collections.Counter()
    for one in results:
        seen.update(one["seen"])
    print(dict(seen))
    return held


def assert_flat(held: list[tuple[int, int]]) -> None:
    """What is held in the last quarter is what was held in the first, once all that it needs was loaded."""
    quarter = len(held) // 4
    early, late = held[:quarter], held[-quarter:]
    print(f"descriptors {min(early)[0]}..{max(early)[0]} then {min(late)[0]}..{max(late)[0]}")
    print(f"memory {max(m for _, m in early) >> 10} KiB then {min(m for _, m in late) >> 10} KiB")
    assert min(fds for fds, _ in late) <= max(fds for fds, _ in early)
    assert min(memory for _, memory in late) <= max(memory for _, memory in early) + SLACK


def assert_consistent(home: Path, count: int) -> None:
    """Each run is there, over, its record whole; no box, no half-made run, no half-written order."""
    place = Home(str(home))
    assert len(place.runs()) == count == len(os.listdir(home / "runs"))
    for run_id in place.runs():
        one = status(place, run_id)
        assert (one.state, one.boxes) == ("stopped", []) and one.run.ended, (run_id, one.state, one.why)
        assert {task.state for task in one.run.tasks.values()} == {"exited"}
        assert sorted(os.listdir(home / "runs" / run_id / "ctl")) == ["control", "tasks"]
        assert {path.name for path in (home / "runs" / run_id / "ctl/tasks").iterdir()} == set(one.run.tasks)
    assert not [box for backend in local_backends(str(home)) for box in backend.list()]


def soak(home: Path, tmp_path: Path, count: int) -> None:
    bystander = subprocess.Popen(["sh", "-c", "sleep 900 & sleep 900"], start_new_session=True)
    home.mkdir(mode=0o700)
    try:
        with watching(home, tmp_path) as watch:
            held = play(home, count, watch)
            threads = Path(f"/proc/{watch.process.pid}/task").glob("*/children")
            children = [int(pid) for thread in threads for pid in thread.read_text().split()]
            assert not [pid for pid in children if (stat := read_stat(pid)) and stat.state == "Z"]
        assert_consistent(home, count * SIDE_BY_SIDE)
        assert agentbox("reconcile").returncode == 0
        assert_flat(held)
        assert is_alive(bystander.pid)
    finally:
        os.killpg(bystander.pid, 9)
        bystander.wait()


@pytest.mark.limit(300)
def test_eighty_runs(home: Path, tmp_path: Path) -> None:
    soak(home, tmp_path, 10)


@pytest.mark.full("two thousand runs")
@pytest.mark.limit(7200)
def test_two_thousand_runs(home: Path, tmp_path: Path) -> None:
    soak(home, tmp_path, 250)
