"""The ladder: order, grace, SIGTERM, kill; each rung ends as soon as the run is empty.

Rungs that must end early have an hour to do so, and a test has minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sandbox.launch.finish import ENDING_BY_ITSELF_SECONDS
from tests.boundary.test_gate import HARNESS
from tests.stop.agents import INTERVAL
from tests.stop.conftest import Staged
from tests.stop.stage import agent, inspect, new_id, receipt
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

EVERYWHERE = pytest.mark.bed("host", "nspawn", "nspawn-user")
HOUR = "1h"


def rungs(found: dict[str, list[dict[str, object]]]) -> list[object]:
    return [rung["rung"] for rung in found["rungs"]]


def answered(folder: Path) -> list[str]:
    """Whose handler of SIGTERM has run."""
    return sorted(path.name.removeprefix("term-") for path in folder.glob("term-*"))


@EVERYWHERE
@pytest.mark.parametrize(
    ("trick", "who"),
    [
        ("polite", ["main", "one", "two"]),
        ("polite_stopped", ["main", "one"]),
        ("polite_frozen", ["main", "one"]),
    ],
)
def test_handler_of_sigterm_runs(staged: Staged, trick: str, who: list[str]) -> None:
    """Also of what was stopped by SIGSTOP, or frozen."""
    stage = staged(agent(trick))
    stage.start()
    found = receipt("abort", stage.run_id, "--grace", "0", "--term", HOUR)
    assert answered(stage.folder) == who
    assert rungs(found) == ["order", "grace", "term", "kill"]
    assert len(found["processes"]) == len(who)
    assert agentbox("wait", stage.run_id).returncode == 143
    assert stage.inspect()["state"] == "stopped"
    assert stage.registered_alive() == []
    stage.twin_beats_on()


@EVERYWHERE
def test_worker_that_leaves_at_its_boundary_is_not_signalled(staged: Staged) -> None:
    stage = staged(agent("leaver"))
    stage.start()
    found = receipt("abort", stage.run_id, "--grace", HOUR, "--term", HOUR)
    assert (stage.folder / "saved").exists()
    assert answered(stage.folder) == []
    assert rungs(found) == ["order", "grace", "kill"]
    assert agentbox("wait", stage.run_id).returncode == 143
    assert stage.inspect()["task_list"][0]["outcome"] == "stopped"


def test_who_had_gone_in_the_grace_is_not_said_to_have_been_ended(home: Path) -> None:
    run = new_id("gone")
    script = f'sleep 900 & while sh "{HARNESS}/gate.sh" gate x; do sleep 0.1; done'
    agentbox("run", "-d", "--run-id", run, "--", "sh", "-c", script, check=0)
    wait_for(lambda: (home / "runs" / run / "beat" / "main").exists())
    said = agentbox("abort", run, "--grace", "5s", check=0).stdout
    agentbox("wait", run)
    (found,) = inspect(run)["receipts"]
    gone = found["gone_in_grace"]
    assert gone >= 1 and len(found["processes"]) - gone == found["rungs"][2]["processes"] == 1
    assert f"; ended 1 process, {gone} had gone by the end of the grace\n" in said


@EVERYWHERE
def test_launcher_leaves_the_workers_their_grace(staged: Staged) -> None:
    """The main command may leave long before them."""
    stage = staged(agent("early_leaver"))
    stage.start()
    argv = agentbox_argv("abort", stage.run_id, "--grace", HOUR, "--json")
    abort = subprocess.Popen(argv, env=agentbox_env(), stdout=subprocess.PIPE, text=True)
    wait_for((stage.folder / "saved").exists)
    stage.twin_beats_on(int((ENDING_BY_ITSELF_SECONDS + 2) / INTERVAL))
    assert stage.registered_alive() == ["worker"]
    (stage.folder / "done").touch()
    assert json.loads(abort.communicate(timeout=60)[0])[0]["proof"] == "empty"
    assert abort.returncode == 0
    assert (stage.folder / "worker-saved").exists()
    assert answered(stage.folder) == []
    assert agentbox("wait", stage.run_id).returncode == 143


@EVERYWHERE
def test_all_have_their_sigterm_before_any_acts_on_it(staged: Staged) -> None:
    stage = staged(agent("supervisor"))
    stage.start()
    found = receipt("abort", stage.run_id, "--grace", "0", "--term", HOUR)
    assert not (stage.folder / "restarted").exists()
    assert len(found["processes"]) == 32
    assert stage.registered_alive() == []


@EVERYWHERE
def test_what_ignores_sigterm_is_killed(staged: Staged) -> None:
    stage = staged(agent("term_ignored"))
    stage.start()
    found = receipt("abort", stage.run_id, "--grace", "0", "--term", "0.1")
    assert rungs(found) == ["order", "grace", "term", "kill"]
    assert [rung["processes"] for rung in found["rungs"]][1:] == [2, 2, 2]
    stage.assert_stopped(found)


@pytest.mark.bed("host", "nspawn")
def test_kill_during_an_abort_ends_both(staged: Staged) -> None:
    """And the id stays taken while the run dies, and after."""
    stage = staged(agent("slow_to_die"))
    stage.start()
    argv = agentbox_argv("abort", stage.run_id, "--grace", "0", "--term", HOUR)
    abort = subprocess.Popen(argv, env=agentbox_env(), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: answered(stage.folder) == ["main"])
    again = ("run", "-d", "--run-id", stage.run_id, "--", "true")
    assert "taken" in agentbox(*again, check=125).stderr
    assert stage.inspect()["state"] == "stopping"
    found = stage.kill()
    assert len(found["processes"]) == 1
    assert abort.communicate(timeout=60)[0].startswith(f"{stage.run_id}: ")
    assert abort.returncode == 0
    stage.assert_stopped(found)
    assert "taken" in agentbox(*again, check=125).stderr


@pytest.mark.bed("host")
def test_abort_of_an_ended_run_proves_it_empty_and_changes_nothing(home: Path) -> None:
    agentbox("run", "-d", "--run-id", "over", "--", "true", check=0)
    agentbox("wait", "over", check=0)
    order = (home / "runs/over/ctl/control").read_bytes()
    assert receipt("abort", "over")["proof"] == "empty"
    assert (home / "runs/over/ctl/control").read_bytes() == order
    assert agentbox("wait", "over").returncode == 0


@EVERYWHERE
@pytest.mark.parametrize("how", ["kill", "abort"])
def test_waiter_never_sees_success(staged: Staged, how: str) -> None:
    """Not even of a command that ends with 0 when it is asked to."""
    stage = staged(agent("polite"))
    argv = agentbox_argv("run", "--run-id", stage.run_id, "--backend", stage.backend, "--", *stage.argv)
    run = subprocess.Popen(argv, cwd=stage.folder, env=agentbox_env(), stderr=subprocess.PIPE, text=True)
    try:
        stage.wait_ready()
        options = ["--grace", "0"] if how == "abort" else []
        found = receipt(how, stage.run_id, "--reason", "enough", *options)
        assert f"agentbox kill {stage.run_id}" in run.communicate(timeout=60)[1]
    finally:
        run.kill()
        run.wait()
    expected = 137 if how == "kill" else 143
    assert run.returncode == expected
    assert agentbox("wait", stage.run_id).returncode == expected
    (task,) = stage.inspect()["task_list"]
    assert task["outcome"] == ("killed" if how == "kill" else "stopped")
    assert task["code"] == expected
    ended = next(r for r in records(stage.run_id) if r["event"] == "task.exited")
    assert (ended["reason"], ended["asked_by"]) == ("enough", found["asked_by"])
    assert str(os.geteuid()) in ended["asked_by"]


def records(run_id: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in agentbox("manifest", run_id, check=0).stdout.splitlines()]


@EVERYWHERE
def test_heavy_process_far_below_is_waited_for_and_its_cgroups_removed(staged: Staged) -> None:
    stage = staged(agent("heavy"))
    stage.start()
    stage.assert_stopped(stage.kill())
