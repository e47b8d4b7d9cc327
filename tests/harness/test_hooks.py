"""The commands that the hooks of Claude Code, Codex and Cursor run, as installed, against the real gate."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandbox.control import orders
from sandbox.harness.adapters import ADAPTERS
from sandbox.harness.beat import marks, under_way
from sandbox.manifest.home import Home, RunDir
from tests.harness import payloads
from tests.support import wait_for

Done = subprocess.CompletedProcess[str]


@pytest.fixture(params=payloads.HARNESSES)
def harness(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(home: Path) -> RunDir:
    made = Home(str(home)).ensure().run_dir("r1").create()
    orders.create_order(made.control, by="test")
    orders.create_order(made.task_order("t1"), by="test")
    return made


def by_event(harness: str) -> dict[str, str]:
    """The command of each event, out of the adapter as it is installed."""
    found: dict[str, str] = {}
    for event, entries in ADAPTERS[harness].hooks()["hooks"].items():
        for entry in entries:
            (hook,) = entry.get("hooks", [entry])
            found[event] = hook["command"]
    return found


def commands(harness: str) -> tuple[str, list[str]]:
    """The command before a call, and those after one."""
    found = by_event(harness)
    (first,) = [command for event, command in found.items() if event.lower() == "pretooluse"]
    return first, [command for event, command in found.items() if event.lower().startswith("posttooluse")]


def environment(run: RunDir | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTBOX", "PYTHON"))}
    if run is not None:
        env |= {"AGENTBOX_CONTROL": run.control, "AGENTBOX_BEAT": run.beat("t1"), "AGENTBOX_TASK_ID": "t1"}
    return env


def call(command: str, payload: dict[str, Any] | str, run: RunDir | None) -> Done:
    """As a harness runs it: by a shell, the JSON on stdin, from any folder."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return subprocess.run(
        ["sh", "-c", command], input=text, env=environment(run), cwd="/", capture_output=True, text=True, timeout=30
    )


def verdict(harness: str, done: Done) -> tuple[bool, str, bool]:
    """Does the call go on, why not, and does the turn end: as the harness's documentation reads the answer."""
    if done.returncode == 2:
        return False, done.stderr, False
    assert done.returncode == 0, done
    answer = json.loads(done.stdout) if done.stdout.strip() else {}
    if harness == "cursor":
        assert set(answer) <= {"permission", "user_message", "agent_message"}
        return answer.get("permission") != "deny", answer.get("agent_message", ""), False
    specific = answer.get("hookSpecificOutput", {})
    assert answer == {} or (harness == "claude" and specific["hookEventName"] == "PreToolUse")
    return specific.get("permissionDecision") != "deny", answer.get("stopReason", ""), answer.get("continue") is False


def test_a_call_goes_on_and_is_marked(harness: str, run: RunDir) -> None:
    first, later = commands(harness)
    done = call(first, payloads.before(harness), run)
    assert verdict(harness, done) == (True, "", False)
    assert done.stderr == ""
    for command in later:
        done = call(command, payloads.after(harness), run)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == ("{}" if harness == "cursor" else "")
    seen = marks(run.beat("t1"))
    assert [mark.word for mark in seen] == ["call", *["tick"] * len(later)]
    (name,) = {mark.name for mark in seen}
    assert name.startswith(f"{payloads.call_name(harness)}:") and len(name) <= 64


def test_stop_refuses_a_call_and_says_why(harness: str, run: RunDir) -> None:
    orders.write_order(run.control, "STOP", reason='enough "of" it')
    first, later = commands(harness)
    goes_on, why, ends = verdict(harness, call(first, payloads.before(harness), run))
    assert not goes_on
    assert 'enough "of" it' in why
    assert ends == (harness == "claude")
    after = call(later[0], payloads.after(harness), run)
    assert after.returncode == 0
    if harness != "cursor":
        assert json.loads(after.stdout)["continue"] is False


def test_a_pause_holds_a_call(harness: str, run: RunDir) -> None:
    orders.write_order(run.control, "PAUSE")
    process = subprocess.Popen(
        ["sh", "-c", commands(harness)[0]],
        env=environment(run),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin
        process.stdin.write(json.dumps(payloads.before(harness)))
        process.stdin.close()
        process.stdin = None
        wait_for(lambda: [mark.word for mark in marks(run.beat("t1"))] == ["quiet"])
        assert process.poll() is None
        orders.write_order(run.control, "RUN")
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert verdict(harness, Done([], process.returncode, out, err)) == (True, "", False)


def test_a_change_of_the_plan_comes_in_place_of_one_call(harness: str, run: RunDir) -> None:
    Path(run.steer("t1")).write_text('{"task": "t1", "delta": "PLAN-B"}\n')
    first, _ = commands(harness)
    goes_on, why, ends = verdict(harness, call(first, payloads.before(harness), run))
    assert not goes_on and not ends
    assert "PLAN-B" in why
    assert [mark.word for mark in marks(run.beat("t1"))] == ["call", "tick"], "the call is not under way"
    assert verdict(harness, call(first, payloads.before(harness), run)) == (True, "", False)


def open_calls(run: RunDir) -> list[str]:
    """What `pause` shows as under way: tool and id."""
    return [name.rpartition(":")[0] for name in under_way(marks(run.beat("t1")))]


def test_a_call_that_nothing_ended_is_over_with_the_turn(harness: str, run: RunDir) -> None:
    """Interrupted or refused by a person: no hook after it, the turn's end is what tells."""
    events = by_event(harness)
    other = {"session_id": "another", "conversation_id": "another", "tool_use_id": "other678"}
    for event, payload in payloads.rest(harness).items():
        for one in (payloads.before(harness), payloads.before(harness) | other):
            assert call(commands(harness)[0], one, run).returncode == 0
        mine, others = payloads.call_name(harness), payloads.call_name(harness).partition(":")[0] + ":other678"
        assert sorted(open_calls(run)) == sorted([mine, others])
        done = call(events[event], payload, run)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == ("{}" if harness == "cursor" else "")
        assert open_calls(run) == [others], "another agent's call is still under way"
        assert call(events[event], payload | other, run).returncode == 0
        assert open_calls(run) == []
    assert set(payloads.rest(harness)) == {event for event, command in events.items() if command.endswith(" rest")}


def test_codex_tells_the_next_turn_before_its_first_call(run: RunDir) -> None:
    first, _ = commands("codex")
    for number, turn, left in (("1", "turn-1", 1), ("2", "turn-1", 2), ("3", "turn-2", 1)):
        call(first, payloads.before("codex") | {"tool_use_id": f"call_{number}", "turn_id": turn}, run)
        assert len(open_calls(run)) == left, "calls of one turn may be under way together"
    child = {"tool_use_id": "call_4", "turn_id": "turn-3", "agent_id": "child"}
    call(first, payloads.before("codex") | child, run)
    assert open_calls(run) == ["Bash:call3", "Bash:call4"], "a subagent has turns of its own"


def test_a_subagent_of_claude_ends_its_own_calls(run: RunDir) -> None:
    first, events = commands("claude")[0], by_event("claude")
    child = {"agent_id": "a1b2", "agent_type": "Explore"}
    call(first, payloads.before("claude") | {"tool_use_id": "main"}, run)
    call(first, payloads.before("claude") | {"tool_use_id": "child"} | child, run)
    waiting = payloads.rest("claude")["Notification"] | {"notification_type": "permission_prompt"}
    call(events["Notification"], waiting, run)
    assert open_calls(run) == ["Bash:main", "Bash:child"], "a call that waits for a person's yes is under way"
    call(events["SubagentStop"], payloads.rest("claude")["SubagentStop"] | child, run)
    assert open_calls(run) == ["Bash:main"]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"tool_name": 7, "tool_use_id": null}', '{"tool_name": "'])
def test_whatever_the_harness_writes_the_gate_is_asked(harness: str, run: RunDir, text: str) -> None:
    first, later = commands(harness)
    assert verdict(harness, call(first, text, run)) == (True, "", False)
    assert call(later[0], text, run).returncode == 0
    assert all(call(command, text, run).returncode == 0 for command in by_event(harness).values())
    orders.write_order(run.control, "STOP", reason="over")
    goes_on, why, _ = verdict(harness, call(first, text, run))
    assert not goes_on and "over" in why


def test_a_control_file_that_cannot_be_trusted_refuses(harness: str, run: RunDir) -> None:
    os.unlink(run.control)
    os.mkfifo(run.control)
    goes_on, why, _ = verdict(harness, call(commands(harness)[0], payloads.before(harness), run))
    assert not goes_on and "not a regular file" in why


def test_outside_of_a_box_it_is_silent_even_if_agentbox_is_gone(harness: str) -> None:
    for command in by_event(harness).values():
        gone = command.replace("sandbox/harness/hook.py", "sandbox/harness/gone.py")
        for one in (command, gone):
            done = call(one, payloads.before(harness), None)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_inside_of_a_box_a_gate_that_is_gone_refuses(harness: str, run: RunDir) -> None:
    command = commands(harness)[0].replace("sandbox/harness/hook.py", "sandbox/harness/gone.py")
    assert call(command, payloads.before(harness), run).returncode == 2
