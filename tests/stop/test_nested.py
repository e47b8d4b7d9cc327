"""An agent that runs agentbox itself: a stop of what is around ends what is inside, and tells so."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.where import runs_around
from tests.stop.conftest import Staged
from tests.stop.stage import agent, inspect, new_id
from tests.support import agentbox, agentbox_argv, is_alive, wait_for

EVERYWHERE = pytest.mark.bed("host", "nspawn", "nspawn-user")


def shell(*lines: str) -> list[str]:
    """A main command that does `lines`, then lives on."""
    return ["sh", "-c", "\n".join([*lines, "sleep 900"])]


def agentbox_line(*args: str) -> str:
    return shlex.join(agentbox_argv(*args))


def last_receipt(run_id: str) -> dict[str, Any]:
    return dict(inspect(run_id)["receipts"][-1])


def assert_recorded(seen: dict[str, Any]) -> None:
    """The inner run's own record and order tell of its end, who was in it, and who asked."""
    (receipt,) = seen["receipts"]
    assert receipt["proof"] == "empty" and receipt["asked_by"] and receipt["empty_at"]
    assert receipt["processes"] and all(seen["run_id"] in runs_around(one["cgroup"]) for one in receipt["processes"])
    assert seen["order"] == "STOP"
    assert agentbox("spawn", seen["run_id"], "--", "true").returncode == 75
    agentbox("verify", seen["run_id"], check=0)
    assert f"record  {seen['run_id']}" in agentbox("prune", "--older-than", "0s", "--dry-run", check=0).stdout


@EVERYWHERE
@pytest.mark.parametrize("how", ["foreground", "detached", "deeper", "frozen"])
def test_kill_of_the_outer_run_ends_the_inner(staged: Staged, how: str) -> None:
    stage, inner, innermost = staged(agent("attached")), new_id("inner"), new_id("innermost")
    argv = agent("frozen" if how == "frozen" else "attached")
    if how == "deeper":
        argv = ["sh", "-c", agentbox_line("run", "--run-id", innermost, "--", *argv)]
    detach = [] if how == "foreground" else ["-d"]
    stage.start(argv=shell(agentbox_line("run", *detach, "--run-id", inner, "--", *argv)))
    assert inspect(inner)["state"] == "running"
    assert inspect(inner)["parent_run"] == stage.run_id
    found = stage.kill()
    stage.assert_stopped(found)
    for run_id, outer in ((inner, stage.run_id), (innermost, inner)):
        if run_id == innermost and how != "deeper":
            continue
        seen = inspect(run_id)
        assert (seen["state"], seen["why"]) == ("stopped", f"killed by outer run {outer}")
        assert agentbox("wait", run_id).returncode == 137
        assert seen["boxes"] == []
        assert_recorded(inspect(run_id))
    assert json.loads(agentbox("ps", "--json", check=0).stdout) == []


@EVERYWHERE
def test_kill_of_the_inner_run_leaves_the_outer(staged: Staged) -> None:
    stage, inner = staged(agent("attached")), new_id("inner")
    stage.start(argv=shell(agentbox_line("run", "-d", "--run-id", inner, "--", *agent("attached"))))
    agentbox("kill", inner, check=0)
    assert stage.registered_alive() == []
    assert inspect(inner)["state"] == "stopped"
    assert stage.inspect()["state"] == "running"
    assert agentbox("wait", inner).returncode == 137


@EVERYWHERE
@pytest.mark.parametrize("how", ["foreground", "detached"])
def test_kill_ends_what_was_spawned_from_inside(staged: Staged, how: str) -> None:
    stage = staged(agent("attached"))
    detach = ["-d"] if how == "detached" else []
    argv = agentbox_argv("spawn", stage.run_id, *detach, "--task", "worker", "--", *agent("attached"))
    stage.start(argv=shell(shlex.join(argv)))
    assert {task["task_id"] for task in stage.inspect()["task_list"]} == {"main", "worker"}
    stage.assert_stopped(stage.kill())


@EVERYWHERE
def test_task_spawned_from_inside_outlives_the_task_that_asked_for_it(staged: Staged) -> None:
    """It belongs to the run; its launcher does not end with the other task and leave it unwatched."""
    stage = staged(agent("attached"))
    spawn = agentbox_line("spawn", stage.run_id, "-d", "--task", "worker", "--", *agent("attached"))
    stage.start(argv=shell(agentbox_line("spawn", stage.run_id, "--task", "asker", "--", "sh", "-c", spawn)))
    wait_for(lambda: _tasks(stage.run_id)["asker"]["state"] == "exited")
    worker = _tasks(stage.run_id)["worker"]
    assert (worker["state"], worker["launcher_alive"]) == ("started", True)
    agentbox("kill", stage.run_id, "--task", "worker", check=0)
    wait_for(lambda: _tasks(stage.run_id)["worker"]["state"] == "exited")
    assert _tasks(stage.run_id)["worker"]["code"] == 137
    assert stage.inspect()["state"] == "running"
    stage.kill()
    assert agentbox("wait", stage.run_id).returncode == 137


@pytest.mark.bed("host", "nspawn")
def test_task_spawned_from_outside_into_an_inner_run_goes_where_that_is(staged: Staged) -> None:
    """A stop of the inner run ends both of its tasks, a stop of the outer too."""
    for which in ("inner", "outer"):
        stage, inner = staged(agent("attached")), new_id("inner")
        stage.start(
            argv=shell(
                agentbox_line("run", "-d", "--run-id", inner, "--", "sleep", "900"), shlex.join(agent("attached"))
            )
        )
        agentbox("spawn", inner, "-d", "--task", "more", "--", "sleep", "901", check=0)
        (box,) = inspect(inner)["boxes"]
        assert {process["argv"][-1] for process in box["processes"]} == {"900", "901"}
        agentbox("kill", inner if which == "inner" else stage.run_id, check=0)
        assert agentbox("wait", inner).returncode == 137
        assert inspect(inner)["processes"] == 0
        assert stage.inspect()["state"] == ("running" if which == "inner" else "stopped")


@EVERYWHERE
def test_task_cannot_be_put_outside_of_the_run_that_asks(staged: Staged) -> None:
    """A stop of the asker's run would leave it."""
    other, stage = staged(agent("attached")), staged(agent("attached"))
    other.start()
    argv = agentbox_line("spawn", other.run_id, "-d", "--", "touch", f"{other.folder}/escaped")
    stage.start(argv=shell(f"{argv} 2>refused; echo $? >status; {shlex.join(agent('attached'))}"))
    assert (stage.folder / "status").read_text() == "125\n"
    assert "start it from outside" in (stage.folder / "refused").read_text()
    assert not (other.folder / "escaped").exists()
    assert other.inspect()["processes"] == 3


@pytest.mark.bed("nspawn", "nspawn-user")
def test_task_of_another_backend_ends_with_the_run(staged: Staged, bed: str) -> None:
    if bed == "nspawn-user":
        scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes"]
    else:
        scope = []
    stage = staged(agent("attached"))
    wait = "while ! [ -e go-on ]; do sleep 0.01; done"
    stage.start(argv=["sh", "-c", f": > ready; {wait}"])
    (stage.folder / "ready").unlink()
    argv = agentbox_argv("spawn", stage.run_id, "-d", "--backend", "cgroup", "--", *stage.argv)
    subprocess.run([*scope, *argv], cwd=stage.folder, check=True, stdout=subprocess.DEVNULL)
    stage.wait_ready()
    assert len(stage.inspect()["boxes"]) == 2
    (stage.folder / "go-on").touch()
    assert agentbox("wait", stage.run_id).returncode == 0
    assert stage.registered_alive() == []
    assert stage.inspect()["state"] == "exited"


def _tasks(run_id: str) -> dict[str, Any]:
    return {task["task_id"]: task for task in inspect(run_id)["task_list"]}


@EVERYWHERE
@pytest.mark.parametrize("verb", ["kill", "abort"])
def test_run_that_is_stopped_from_inside(staged: Staged, verb: str) -> None:
    """It ends whole, the asker with it; the proof is given by the launcher, which lives outside."""
    stage = staged(agent("attached"))
    options = ["--grace", "0", "--term", "0.1"] if verb == "abort" else []
    ask = agentbox_line(verb, stage.run_id, "--reason", "had enough", *options)
    stage.start(argv=shell(f"(while ! [ -e go-on ]; do sleep 0.01; done; {ask}) &", shlex.join(agent("attached"))))
    (stage.folder / "go-on").touch()
    assert agentbox("wait", stage.run_id).returncode in ((137,) if verb == "kill" else (137, 143))
    assert stage.registered_alive() == []
    before = stage.beats()
    stage.twin_beats_on()
    assert stage.beats() == before
    seen = stage.inspect()
    assert (seen["state"], seen["why"]) == ("stopped", "had enough")
    assert seen["task_list"][0]["outcome"] in ("killed", "stopped")
    assert seen["receipts"][-1]["proof"] == "empty"
    listed = [p["argv"] for receipt in seen["receipts"] for p in receipt["processes"]]
    assert agent("attached") in listed
    agentbox("verify", stage.run_id, check=0)


@EVERYWHERE
def test_all_runs_stopped_from_inside_of_one(staged: Staged) -> None:
    """The asker's own run is the last: nothing that was to be stopped is left because the asker has ended."""
    stages = [staged(agent("attached"), f"{name}-{new_id()}") for name in "acd"]
    own = staged(agent("attached"), f"b-{new_id()}")
    for stage in stages:
        stage.start()
    ask = agentbox_line("kill", "--all", "--reason", "all of it")
    own.start(argv=["sh", "-c", f"{shlex.join(agent('attached'))} & while ! [ -e go-on ]; do sleep 0.01; done; {ask}"])
    (own.folder / "go-on").touch()
    for stage in (own, *stages):
        assert agentbox("wait", stage.run_id).returncode == 137
        assert stage.registered_alive() == []
        assert last_receipt(stage.run_id)["proof"] == "empty"
        assert is_alive(stage.twin.pid)


@pytest.mark.parametrize("inner_too", [False, True], ids=["outer", "inner-and-outer"])
@EVERYWHERE
def test_outer_run_killed_from_within_the_inner(inner_too: bool, staged: Staged) -> None:
    """The end of the inner is the asker's, too: it does not come before the outer's."""
    stage, inner = staged(agent("attached")), new_id("inner")
    words = (inner, stage.run_id) if inner_too else (stage.run_id,)
    kill = f"while ! [ -e go-on ]; do sleep 0.01; done; {agentbox_line('kill', *words)}"
    act = f"{shlex.join(agent('attached'))} & {kill}"
    stage.start(argv=shell(agentbox_line("run", "-d", "--run-id", inner, "--", "sh", "-c", act)))
    (stage.folder / "go-on").touch()
    assert agentbox("wait", stage.run_id).returncode == 137
    assert stage.registered_alive() == []
    assert inspect(inner)["state"] == "stopped"
    assert last_receipt(stage.run_id)["proof"] == "empty"
    assert is_alive(stage.twin.pid)


@pytest.mark.bed("nspawn")
def test_emergency_stop_from_a_cgroup_namespace_inside_of_a_run(staged: Staged) -> None:
    other, stage = staged(agent("attached")), staged(agent("attached"))
    other.start()
    ask = f"while ! [ -e go-on ]; do sleep 0.01; done; unshare -C {agentbox_line('estop')}"
    stage.start(argv=["sh", "-c", f"{shlex.join(agent('attached'))} & {ask}; sleep 900"])
    (stage.folder / "go-on").touch()
    for one in (stage, other):
        assert agentbox("wait", one.run_id).returncode == 137
        assert one.registered_alive() == []
        assert last_receipt(one.run_id)["proof"] == "empty"


@pytest.mark.bed("host", "nspawn")
def test_run_killed_from_a_cgroup_namespace_inside_of_it(staged: Staged) -> None:
    """There /proc/self/cgroup does not tell where the asker is (cgroup_namespaces(7)): it must not freeze itself."""
    stage = staged(agent("attached"))
    kill = f"while ! [ -e go-on ]; do sleep 0.01; done; unshare -C {agentbox_line('kill', stage.run_id)}"
    stage.start(argv=["sh", "-c", f"{shlex.join(agent('attached'))} & {kill}; sleep 900"])
    (stage.folder / "go-on").touch()
    assert agentbox("wait", stage.run_id).returncode == 137
    assert stage.registered_alive() == []
    assert last_receipt(stage.run_id)["proof"] == "empty"
    assert is_alive(stage.twin.pid)


@pytest.mark.bed("nspawn-user")
def test_plain_user_in_a_delegated_cgroup_needs_no_manager(staged: Staged, tmp_path: Path) -> None:
    """The cgroup backend works where the user may write: here in a scope of the user's own."""
    stage = staged(agent("double_fork"))
    scope = ["systemd-run", "--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes"]
    argv = agentbox_argv("run", "--backend", "cgroup", "--run-id", stage.run_id, "--", *stage.argv)
    run = subprocess.Popen([*scope, *argv], cwd=stage.folder, env=dict(os.environ))
    try:
        stage.wait_ready()
        assert stage.inspect()["backend"] == "cgroup"
        stage.assert_stopped(stage.kill())
        assert run.wait(timeout=60) == 137
    finally:
        run.kill()
        run.wait()
