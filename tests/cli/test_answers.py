"""What a verb says where there is nothing to do for it, or where what it says would otherwise leave a person stuck."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.runs import start
from tests.support import agentbox, agentbox_argv, wait_for

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("words", [("kill", "--all"), ("abort", "--all")])
def test_stop_of_all_where_nothing_is_alive(home: Path, words: tuple[str, ...]) -> None:
    assert agentbox(*words, check=0).stdout == f"nothing is alive of {home}\n"
    assert agentbox(*words, "--json", check=0).stdout == "[]\n"


def test_refusal_in_an_emergency_tells_since_when_by_whom_and_why(home: Path) -> None:
    agentbox("estop", "--reason", "the build is on fire", check=0)
    try:
        refused = agentbox("run", "--", "true", check=75)
        since = json.loads(agentbox("estop", "--status", "--json").stdout)["since"]
        assert f"since {since}" in refused.stderr and ": the build is on fire" in refused.stderr
        shown = agentbox("ps", check=0)
        assert "the emergency stop is on" in shown.stderr
        assert agentbox("ps", "--json", check=0).stderr == ""
    finally:
        agentbox("estop", "--lift", check=0)
    assert agentbox("ps", check=0).stderr == ""


def test_wait_for_what_never_started(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    failed = agentbox("run", "-d", "--run-id", "r1", "--backend", "cgroup", "--", str(script))
    done = agentbox("wait", "r1")
    assert failed.returncode == done.returncode == 127
    assert "run r1 never started: " in done.stderr and "no interpreter" in done.stderr


def test_head_that_is_no_digest() -> None:
    run = start("true")
    agentbox("wait", run, check=0)
    done = agentbox("verify", run, "--head", "abc", check=2)
    assert "no digest" in done.stderr and done.stdout == ""
    assert agentbox("verify", run, "--head", "0" * 64, check=1).stdout.startswith(f"{run}: BROKEN")


@pytest.mark.parametrize("verb", ["", "kill", "ps", "reconcile"])
def test_help_as_a_verb(verb: str) -> None:
    words = [verb] if verb else []
    assert agentbox("help", *words, check=0).stdout == agentbox(*words, "--help", check=0).stdout


def test_stop_that_was_written_by_hand(home: Path) -> None:
    run = start("sleep", "900")
    (home / "runs" / run / "ctl" / "control").write_text("STOP\n")
    assert "STOP, written by hand" in agentbox("resume", run, check=75).stderr
    agentbox("kill", run, check=0)


def test_foreground_run_that_was_stopped_says_so(home: Path) -> None:
    argv = agentbox_argv("run", "--run-id", "r1", "--backend", "cgroup", "--", "sleep", "900")
    running = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: '"state": "running"' in agentbox("ps", "--json").stdout)
    agentbox("kill", "r1", "--reason", "enough", check=0)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 137
    assert said.endswith("agentbox: run r1 was stopped: enough; agentbox report r1 tells where\n")
    late = agentbox("run", "--run-id", "r2", "--backend", "cgroup", "--timeout", "0.2", "--", "sleep", "900", check=124)
    assert "agentbox: run r2 was stopped: timeout of 0.2s; " in late.stderr
