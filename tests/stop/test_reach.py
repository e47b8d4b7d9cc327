"""After a kill nothing of the run lives, whatever it did to get away, and nothing else has ended."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stop.conftest import Staged
from tests.stop.stage import agent, registered
from tests.support import agentbox, wait_for

DEPLOY = Path(__file__).with_name("deploy.sh")
EVERYWHERE = pytest.mark.bed("host", "nspawn", "nspawn-user")

TRICKS = [
    "attached",
    "double_fork",
    "nohup",
    "starter_gone",
    "term_ignored",
    "stopped",
    "traced",
    "vforked",
    "frozen",
    "nested",
    "nested_frozen",
    "nested_locked",
    "box_locked",
    "nested_threaded",
    "disowned",
    "moved_out",
    "leader_gone",
    "hopper",
]


def names(found: dict[str, Any]) -> list[str]:
    """The command lines of a receipt."""
    return [" ".join(process["argv"] or []) for process in found["processes"]]


@pytest.mark.bed("host", "nspawn", "nspawn-user", "vm")
def test_deployment_stops_in_its_third_step(staged: Staged) -> None:
    stage = staged(["sh", str(DEPLOY)])
    stage.start()
    found = stage.kill("--reason", "wrong branch")
    stage.assert_stopped(found)
    (stage.folder / "go-on").touch()
    (stage.outside / "go-on").touch()
    wait_for((stage.outside / "step-6.done").exists)
    stage.twin_beats_on()
    steps = sorted(name for name in stage.beats() if name.startswith("step"))
    assert steps == ["step-1.done", "step-1.started", "step-2.done", "step-2.started", "step-3.started"]
    listed = names(found)
    assert any(line == f"sh {DEPLOY}" for line in listed)
    assert any("heartbeat attached" in line for line in listed)
    assert any("heartbeat main" in line for line in listed)
    assert found["frozen_at"] and found["ordered_at"] <= found["frozen_at"] <= found["empty_at"]
    assert stage.inspect()["reason"] == "wrong branch"


@EVERYWHERE
@pytest.mark.parametrize("trick", TRICKS)
def test_kill_ends_all(staged: Staged, trick: str) -> None:
    stage = staged(agent(trick))
    stage.start()
    known = {pid for name, pid, _ in registered(stage.folder) if name in stage.registered_alive()}
    found = stage.kill()
    stage.assert_stopped(found)
    if trick != "hopper":
        assert known <= {process["pid"] for process in found["processes"]}
    assert any(line.endswith(f"agents.py {trick}") for line in names(found))


@EVERYWHERE
@pytest.mark.parametrize("trick", ["nested_locked", "nested_threaded", "box_locked", "leader_gone"])
def test_kill_of_a_task_ends_all_of_it_alone(staged: Staged, trick: str, tmp_path: Path) -> None:
    """The task's own box, where there is no domain above it to kill at."""
    stage = staged(agent("attached"))
    stage.start()
    second = tmp_path / "second"
    second.mkdir()
    agentbox("spawn", stage.run_id, "-d", "--task", "bad", "--", *agent(trick), cwd=second, check=0)
    wait_for((second / "ready").exists, 60)
    found = stage.kill("--task", "bad")
    assert found["proof"] == "empty" and found["processes"]
    sizes = {path: path.stat().st_size for path in second.glob("beat-*")}
    stage.twin_beats_on()
    assert {path: path.stat().st_size for path in second.glob("beat-*")} == sizes
    assert stage.inspect()["state"] == "running"
    before = stage.beats()["beat-main"]
    wait_for(lambda: stage.beats()["beat-main"] > before, what="the other task does not beat")
    stage.assert_stopped(stage.kill())


@pytest.mark.bed("host")
@pytest.mark.parametrize("of", ["run", "task"])
def test_kill_ends_a_box_that_was_made_threaded(staged: Staged, of: str) -> None:
    """Without a manager, which would remove the box while it is empty."""
    stage = staged(agent("box_threaded"))
    stage.start()
    box = Path(stage.inspect()["boxes"][0]["cgroup"]) / "main"
    assert (box / "cgroup.type").read_text() == "threaded\n"
    found = stage.kill(*(["--task", "main"] if of == "task" else []))
    assert len(found["processes"]) == 2
    stage.assert_stopped(found if of == "run" else None)


@pytest.fixture
def v1_group() -> Iterator[str]:
    """The name of a v1 freezer group that the agent makes."""
    name = f"testbed-{uuid.uuid4().hex[:8]}"
    yield name
    group = Path("/sys/fs/cgroup/freezer") / name
    if group.exists():
        (group / "freezer.state").write_text("THAWED")
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.bed("host")
@pytest.mark.may_skip("hybrid hosts alone have the v1 freezer")
def test_kill_ends_what_the_v1_freezer_holds(staged: Staged, v1_group: str) -> None:
    if not os.access("/sys/fs/cgroup/freezer/cgroup.procs", os.W_OK):
        pytest.skip("no v1 freezer that we may write to")
    stage = staged(agent("v1_frozen"))
    (stage.folder / "freezer").write_text(v1_group)
    stage.start()
    found = stage.kill()
    stage.assert_stopped(found)
    assert len(found["processes"]) == 2


@pytest.mark.bed("host", "nspawn")
def test_kill_ends_a_thousand(staged: Staged) -> None:
    stage = staged(agent("thousand"))
    stage.start()
    assert stage.inspect()["processes"] == 1001
    found = stage.kill()
    stage.assert_stopped(found)
    assert len(found["processes"]) == 1001
    assert set(names(found)) == {" ".join(stage.argv)}


@pytest.mark.bed("vm")
def test_kill_ends_a_fork_bomb_within_its_limit(staged: Staged) -> None:
    stage = staged(agent("bomb"))
    stage.start("--pids", "200")
    wait_for(lambda: stage.inspect()["processes"] >= 200, 60)
    found = stage.kill()
    stage.assert_stopped(found)
    assert 200 <= len(found["processes"]) <= 201


@EVERYWHERE
@pytest.mark.parametrize("how", ["end", "leave"])
def test_daemon_whose_command_has_ended(staged: Staged, how: str) -> None:
    """What outlives the command is ended with it and listed; kept if asked for, it can still be killed."""
    stage = staged(["sh", "-c", 'setsid -f "$0" "$@"; while ! [ -e ready ]; do sleep 0.01; done', *agent("attached")])
    if how == "leave":
        stage.start("--on-exit", "leave")
        wait_for(lambda: stage.inspect()["state"] == "leftovers", what="its main command does not end")
        assert agentbox("wait", stage.run_id).returncode == 0
        found = stage.kill()
        assert len(found["processes"]) == 3
    else:
        stage.start()
        assert agentbox("wait", stage.run_id).returncode == 0
        (task,) = stage.inspect()["task_list"]
        assert len(task["leftovers"]) == 3
        assert stage.inspect()["state"] == "exited"
    stage.wait_ready()
    before = stage.beats()
    assert stage.registered_alive() == []
    stage.twin_beats_on()
    assert stage.beats() == before
