"""Each verb killed before each of its system calls, and each of them failing with what it may fail with.

By default a sample, drawn with AGENTBOX_TEST_SEED (or 1); `--full` plays every case.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beds.base import TREE
from tests.cli.runs import start, wait_pids
from tests.proof.crashes import SCENES
from tests.support import agentbox_env

SAMPLE = 10
"""Cases of each kind for each scene by default."""
RARE = [
    *(("reconcile", f"ENOMEM at mmap {which}") for which in ("1", "2", "2+")),
    ("kill", "ENOMEM at mmap 2+"),
    ("run-d", "EIO at write 7"),
]
BESIDE = ("sh", "-c", "sleep 90000 & setsid sleep 90000 & sleep 90000")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups at the top, ptrace(2)"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]


def play(scene: str, count: int, tmp_path: Path) -> None:
    """Both kinds side by side, each in a home of its own with a run beside it that must live."""
    seed = os.environ.get("AGENTBOX_TEST_SEED", "1")
    players = []
    for which in ("kills", "errors"):
        home = tmp_path / which
        beside = start(*BESIDE, options=("--backend", "cgroup"), home=home)
        pids = " ".join(map(str, wait_pids(beside, 4)))
        env = agentbox_env(home, BYSTANDER=beside, BYSTANDER_PIDS=pids)
        argv = [sys.executable, "-m", "tests.proof.crashes", scene, which, seed, str(count)]
        players.append((beside, home, subprocess.Popen(argv, cwd=TREE, env=env, stdout=subprocess.PIPE, text=True)))
    results = [json.loads(player.communicate()[0] or "{}") for _, _, player in players]
    for beside, home, _ in players:
        subprocess.run(
            [sys.executable, "-m", "sandbox.cli.main", "kill", beside],
            env=agentbox_env(home), check=True, capture_output=True,
        )  # fmt: skip
    print(seed, results)
    faults = [fault for result in results for fault in result.get("faults", ["a player ended without a result"])]
    assert not faults, "\n".join(faults)
    assert all(result["cases"] == min(count or result["points"], result["points"]) for result in results)


@pytest.mark.limit(600)
@pytest.mark.parametrize("scene", SCENES)
def test_some_crashes_and_errors(scene: str, tmp_path: Path) -> None:
    play(scene, SAMPLE, tmp_path)


@pytest.mark.parametrize("scene,fault", RARE)
def test_faults_that_a_sample_may_miss(scene: str, fault: str, tmp_path: Path) -> None:
    """No memory for a new thread, at whose birth threading.Thread.start waits for ever; and a launcher that can't say
    that its task runs."""
    argv = [sys.executable, "-m", "tests.proof.crashes", scene, fault, "1", "0"]
    done = subprocess.run(argv, cwd=TREE, env=agentbox_env(tmp_path / "home"), stdout=subprocess.PIPE, text=True)
    assert json.loads(done.stdout)["faults"] == []
    assert "INJECTED" in (tmp_path / "home.trace").read_text(), "the verb never came to this call"


@pytest.mark.limit(4 * 3600)
@pytest.mark.full("hours: every system call of every verb")
@pytest.mark.parametrize("scene", SCENES)
def test_every_crash_and_error(scene: str, tmp_path: Path) -> None:
    play(scene, 0, tmp_path)
