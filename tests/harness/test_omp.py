"""The real omp, with a model that follows a script, obeys the run's orders at each of its tool calls."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from sandbox.control import orders
from tests.cli.runs import gone, pids_of, records
from tests.cli.runs import start as start_run
from tests.harness.conftest import Start
from tests.harness.model import Answer, Script
from tests.harness.session import HANDLER_SECONDS, Session, step
from tests.support import agentbox, wait_for

pytestmark = pytest.mark.limit(600)

LONGER = HANDLER_SECONDS + 1.5
"""More than omp gives an extension's handler before it takes that for a refusal."""


def stop(session: Session) -> None:
    """STOP by the control file alone: nothing is killed."""
    orders.order_stop(session.run.control, reason="enough", by="test")


def paused(session: Session) -> None:
    done = agentbox("pause", session.run_id, "--wait", "30s", "--json")
    assert done.returncode == 0, done.stdout


def test_a_pause_holds_the_next_call_and_a_resume_lets_it_go(start: Start) -> None:
    session = start({"MAIN": [[step("one", until="go")], [step("two")], "finished"]})
    assert records(session.run_id, "task.started")[0]["harness"] == "omp"
    session.prompt("MAIN")
    wait_for(lambda: session.steps() == ["one"])
    told = json.loads(agentbox("pause", session.run_id, "--json", check=1).stdout)["tasks"][0]
    assert told["state"] == "call" and told["call"].startswith("bash:")
    session.let_go()
    paused(session)
    wait_for(lambda: session.words() == ["call", "tick", "quiet"])
    held = time.time()
    wait_for(lambda: time.time() > held + LONGER)
    assert session.steps() == ["one"]
    assert not session.seen("agent_end")
    agentbox("resume", session.run_id, check=0)
    session.wait("agent_end")
    assert session.steps() == ["one", "two"]
    assert session.words() == ["call", "tick", "quiet", "call", "tick"]
    assert [mark.tokens for mark in session.marks() if mark.word == "tick"] == [110, 110]
    assert session.model.asked == ["MAIN"] * 3


def test_stop_by_the_control_file_refuses_the_next_call_and_ends_the_turn(start: Start) -> None:
    def stop_and_call() -> Answer:
        stop(session)
        return [step("two")]

    # Installed, and on the command line too: one of the two asks.
    session = start({"MAIN": [[step("one")], stop_and_call, [step("three")]]}, installed=True)
    session.prompt("MAIN")
    session.wait("agent_end")
    assert session.steps() == ["one"]
    assert session.words() == ["call", "tick", "stop"]
    assert session.model.asked == ["MAIN", "MAIN"]
    before = len(session.events)
    session.prompt("MAIN again")
    session.wait("agent_end", after=before)
    assert session.steps() == ["one"]
    assert session.model.asked == ["MAIN", "MAIN"], "the model was asked under STOP"


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "not stopped"])
def test_a_finished_background_job_does_not_wake_it_into_new_calls(start: Start, stopped: bool) -> None:
    job = step("job", until="go")[1]["command"]
    session = start(
        {"MAIN": [[("bash", {"command": f"{job}; echo ended >> steps", "async": True})], "waiting", [step("woken")]]}
    )
    session.prompt("MAIN")
    session.wait("agent_end")
    wait_for(lambda: session.steps() == ["job"])
    if stopped:
        stop(session)
    before = len(session.events)
    session.let_go()
    wait_for(lambda: "ended" in session.steps())
    session.wait("agent_end", after=before)
    assert session.steps() == (["job", "ended"] if stopped else ["job", "ended", "woken"])
    assert session.model.asked == ["MAIN"] * (2 if stopped else 4)


def test_a_subagent_obeys_too_and_a_kill_leaves_nothing(start: Start, bystander: subprocess.Popen[bytes]) -> None:
    def stop_and_call() -> Answer:
        stop(session)
        return [step("three")]

    work = {"context": "none", "tasks": [{"name": "Helper", "task": "CHILD"}]}
    child: Script = [[step("one", until="go")], [step("two")], stop_and_call, [("yield", {})]]
    session = start({"MAIN": [[("task", work)], "waiting"], "CHILD": child})
    session.prompt("MAIN")
    session.wait("agent_end")
    wait_for(lambda: session.steps() == ["one"], 30)
    agentbox("pause", session.run_id, check=1)
    session.let_go()
    wait_for(lambda: session.words()[-1] == "quiet", 30)
    held = time.time()
    wait_for(lambda: time.time() > held + LONGER)
    assert session.steps() == ["one"]
    before = len(session.events)
    agentbox("resume", session.run_id, check=0)
    session.wait("agent_end", 60, before)  # the main agent, woken by the end of its helper
    assert session.steps() == ["one", "two"]
    assert session.words() == ["call", "tick", "call", "tick", "quiet", "call", "tick", "stop"]
    assert session.model.asked == ["MAIN", "MAIN", "CHILD", "CHILD", "CHILD"]
    assert pids_of(session.run_id)
    (receipt,) = json.loads(agentbox("kill", session.run_id, "--json", check=0).stdout)
    assert receipt["proof"] == "empty" and receipt["survivors"] == []
    assert session.process.wait(20) == 137
    wait_for(lambda: gone(session.run_id))


def test_a_change_of_the_plan_is_handed_over_once_in_place_of_a_call(start: Start, home: Path, tmp_path: Path) -> None:
    run_id = start_run("sleep", "1000")
    script: Script = [[step("one", until="go")], [step("two")], [step("three")], "finished"]
    verb = ["spawn", run_id, "--no-hooks", "--task", "w1"]
    session = start({"MAIN": script}, verb, "w1", installed=True)
    assert records(run_id, "task.started")[-1]["harness"] is None
    session.prompt("MAIN")
    wait_for(lambda: session.steps() == ["one"])
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"tasks": [{"task": "w1", "action": "modify", "delta": "PLAN-B"}]}))
    agentbox("redirect", run_id, "--table", str(table), check=0)
    session.let_go()
    session.wait("agent_end")
    assert session.steps() == ["one", "three"]
    assert session.model.heard["MAIN"].count("PLAN-B") == 1
    assert session.words() == ["call", "tick", "call", "tick", "call", "tick"]
