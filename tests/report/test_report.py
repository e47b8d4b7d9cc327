"""The report of a killed deployment agrees with the files that the deployment wrote, and says what it does not know."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from sandbox.report.model import Time
from sandbox.report.page import page
from sandbox.report.summary import summary
from sandbox.report.text import stop_text
from tests.cli.runs import one_line
from tests.report.conftest import GATE, Deploy, report
from tests.report.samples import sample
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

ROUNDS = pytest.mark.full("a deployment a place to kill it at")
STEPS = [f"step{number}" for number in range(60)]


def the_task(found: dict[str, Any], name: str = "main") -> dict[str, Any]:
    (one,) = [task for task in found["tasks"] if task["task_id"] == name]
    return dict(one)


def names(calls: list[dict[str, Any]]) -> set[str]:
    return {call["name"] for call in calls}


def agree(deploy: Deploy, task: dict[str, Any]) -> None:
    """No step that the report calls finished lacks its file, none that started is missing."""
    finished = {call["name"] for call in task["calls"] if call["ended"]}
    assert finished <= deploy.files(".done"), "a step is called finished and left no file"
    assert deploy.files(".started") <= names(task["calls"]), "a step that was started is missing"
    assert names(task["calls"]) == finished | names(task["in_flight"])


@pytest.mark.bed("host", "nspawn")
def test_the_report_of_a_killed_deployment_agrees_with_its_files(deploy: Deploy, tmp_path: Path) -> None:
    deploy.start("build", "test", "hold", "push")
    deploy.kill("--reason", "wrong branch")
    found = deploy.report()
    task = the_task(found)
    agree(deploy, task)
    assert names(task["in_flight"]) == {"hold"} and deploy.files(".done") == {"build", "test"}
    assert task["stopped_by"] == "frozen" and task["stopped_at"] == found["stops"][0]["frozen_at"]
    assert task["last_boundary"]["name"] == "hold" and task["tokens"] == 14
    assert {"hold.started", "test.done"} <= set(task["files"]["before"]) and not task["files"]["after"]
    assert {os.path.basename(one["cwd"]) for one in task["processes"]} == {"deploy"}
    assert len(task["processes"]) >= 3 and all(one["argv"] and one["age"] is not None for one in task["processes"])
    (order,) = found["orders"]
    assert (order["order"], order["reason"]) == ("STOP", "wrong branch") and f"uid {os.getuid()} " in order["by"]
    assert order["at"] <= found["stopped_at"] <= found["empty_at"]
    assert (found["record"], found["alive"], found["findings"]) == ("whole", "empty", [])
    assert set(json.loads(agentbox("report", deploy.run, "--json", check=0).stdout)) == set(found)
    text = agentbox("report", deploy.run, check=0).stdout
    assert text.startswith(f"{deploy.run}: stopped at ") and ", in hold; empty at " in text.splitlines()[0]
    assert "wrong branch" in text and "it has no worktree" in text
    file = tmp_path / "report.html"
    shown = agentbox("report", deploy.run, "--html", str(file), check=0).stdout
    assert shown.splitlines()[0] == text.splitlines()[0]
    assert 'class="flight"' in file.read_text() and "<script" not in file.read_text()


@pytest.mark.bed("host")
@pytest.mark.parametrize("after", [1, 7, 23, *(pytest.param(n, marks=ROUNDS) for n in range(2, 58, 5))])
def test_wherever_a_deployment_is_killed_its_files_and_its_report_agree(deploy: Deploy, after: int) -> None:
    deploy.start(*STEPS, ready=False)
    wait_for(lambda: len(deploy.files(".started")) > after, 60)
    deploy.kill()
    found = deploy.report()
    agree(deploy, the_task(found))
    assert len(the_task(found)["in_flight"]) <= 1


@pytest.mark.bed("host")
def test_worktree_checkpoint_and_uncommitted_files_are_those_of_git(deploy: Deploy, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    commit = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty"]
    subprocess.run([*commit, "-m", "first"], check=True)
    tree = tmp_path / f"wt-{deploy.run}-main"
    deploy.folder = repo
    deploy.start("build", "hold", options=("--worktree",), ready=False)
    wait_for((tree / "ready").exists, 60)
    agentbox("checkpoint", "half way", cwd=tree, check=0)
    (tree / "late.txt").write_text("late")
    deploy.kill()
    task = the_task(deploy.report())
    head = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert task["checkpoint"]["commit"] == head.stdout.strip()
    assert task["checkpoint"]["subject"] == "wip: main half way"
    assert "?? late.txt" in task["uncommitted"] and task["branch"] == f"agent/{deploy.run}/main"
    assert "late.txt" in task["files"]["before"] and names(task["in_flight"]) == {"hold"}


@pytest.mark.bed("host", "nspawn")
def test_each_process_is_told_with_its_own_task(deploy: Deploy) -> None:
    """Also one that left its session and has another parent by now."""
    deploy.start("hold")
    for name in ("w1", "w2"):
        command = f"setsid sh -c 'exec sleep 7{name[1]}7' & exec sleep 8{name[1]}8"
        agentbox("spawn", deploy.run, "-d", "--task", name, "--", "sh", "-c", command, cwd=deploy.folder, check=0)
    spawned = {f"sleep 7{n}7" for n in "12"} | {f"sleep 8{n}8" for n in "12"}

    wait_for(lambda: all(one in agentbox("tree", deploy.run, check=0).stdout for one in spawned), 30)
    deploy.kill()
    found = deploy.report()
    for name in ("w1", "w2"):
        seen = {" ".join(one["argv"]) for one in the_task(found, name)["processes"]}
        assert seen == {f"sleep 7{name[1]}7", f"sleep 8{name[1]}8"}
        assert any("no gate" in line for line in the_task(found, name)["not_known"])
    assert found["unplaced"] == []
    assert "(and 2 tasks without a gate)" in found["summary"]


@pytest.mark.bed("host")
def test_a_pause_is_told_and_a_run_that_lives_is_not_called_stopped(deploy: Deploy) -> None:
    deploy.start("build", "hold", "push")
    agentbox("pause", deploy.run)
    (deploy.folder / "go-on").touch()
    agentbox("pause", deploy.run, "--wait", "30s", check=0)
    found = deploy.report()
    assert found["summary"] == "paused, not stopped; between two calls" and found["alive"] == "alive"
    assert "hold.done" in the_task(found)["files"]["before"] and not the_task(found)["files"]["after"]
    assert the_task(found)["holds"][0]["name"] == "push" and the_task(found)["stopped_by"] == "running"
    deploy.kill()
    found = deploy.report()
    assert [order["order"] for order in found["orders"]] == ["PAUSE", "STOP"]
    assert ", between two calls; empty at " in found["summary"]
    assert names(the_task(found)["calls"]) == {"build", "hold"} == deploy.files(".done")


@pytest.mark.bed("host")
def test_what_leaves_at_its_boundary_under_an_abort(home: Path, tmp_path: Path, bed: str) -> None:
    step = f"sh {GATE} gate build; : > ready; while ! [ -e go-on ]; do sleep 0.02; done; sh {GATE} tick build"
    command = f"{step}; sh {GATE} gate push || exit 3; : > pushed"
    given = ("--run-id", "rep-leave", "--backend", "cgroup")
    agentbox("run", "-d", *given, "--", "sh", "-c", command, cwd=tmp_path, check=0)
    wait_for((tmp_path / "ready").exists)
    abort = agentbox_argv("abort", "rep-leave", "--grace", "60s")
    aborting = subprocess.Popen(abort, env=agentbox_env(), stdout=subprocess.DEVNULL)
    wait_for(lambda: (home / "runs" / "rep-leave" / "ctl" / "control").read_text().startswith("STOP"))
    (tmp_path / "go-on").touch()
    assert aborting.wait() == 0
    agentbox("wait", "rep-leave")
    found = report("rep-leave")
    task = the_task(found)
    assert found["summary"].startswith("left by itself under the stop, between two calls; empty at ")
    assert [rung["rung"] for rung in found["stops"][0]["rungs"]][:2] == ["order", "grace"]
    assert (task["stopped_by"], task["in_flight"], names(task["calls"])) == ("left", [], {"build"})
    assert task["told_to_stop_at"] and not (tmp_path / "pushed").exists()


@pytest.mark.bed("host")
def test_what_ends_after_sigterm_is_not_said_to_have_left(deploy: Deploy) -> None:
    deploy.start("hold")
    agentbox("abort", deploy.run, "--grace", "0s", check=0)
    agentbox("wait", deploy.run)
    found = deploy.report()
    assert found["summary"].startswith("ended after SIGTERM under the stop, in hold; empty at ")
    assert the_task(found)["stopped_by"] == "term" and "term" in {rung["rung"] for rung in found["stops"][0]["rungs"]}


@pytest.mark.bed("host")
def test_who_ends_by_itself_and_leaves_something_is_not_told_as_over(home: Path, bed: str) -> None:
    line = "sleep 1000 </dev/null >/dev/null 2>&1 & exit 3"
    left = ("run", "--run-id", "rep-left", "--backend", "cgroup", "--on-exit", "leave", "--", "sh", "-c", line)
    assert agentbox(*left).returncode == 3
    said = report("rep-left")["summary"]
    assert "ended by itself at " in said and said.endswith("; something of it is alive now")
    agentbox("kill", "rep-left", check=0)
    assert report("rep-left")["alive"] == "empty"


@pytest.mark.parametrize("alive", ["empty", "unknown"])
def test_an_end_is_told_as_far_as_it_is_known(alive: str) -> None:
    one = sample(1)
    one.stops, one.alive = [], alive
    assert ("whether something of it is alive is not known" in summary(one)) is (alive == "unknown")


@pytest.mark.bed("host")
def test_who_ends_by_itself_and_who_runs_out_of_time(home: Path, tmp_path: Path, bed: str) -> None:
    done = agentbox("run", "--run-id", "rep-ends", "--backend", "cgroup", "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    found = report("rep-ends")
    assert "ended by itself at " in found["summary"] and found["code"] == 3 and found["stops"] == []
    assert the_task(found)["stopped_by"] == "ended" and found["orders"] == []
    late = ("run", "--run-id", "rep-late", "--backend", "cgroup", "--timeout", "0.3s", "--", "sleep", "100")
    assert agentbox(*late).returncode == 124
    found = report("rep-late")
    assert found["summary"].startswith("ended by its time-out at ") and the_task(found)["stopped_by"] == "timeout"
    assert "timeout" in found["orders"][-1]["reason"]


@pytest.mark.bed("host")
def test_marks_and_files_from_after_the_stop_are_doubted(deploy: Deploy, home: Path) -> None:
    deploy.start("build", "hold")
    deploy.kill()
    (deploy.folder / "after.txt").touch()
    beat = home / "runs" / deploy.run / "beat" / "main"
    with beat.open("a") as file:
        file.write(f"{time.time() + 1:.3f} tick 0 hold 5\n{time.time():.3f} call 1 push 0\nnan call 1 x 0\nrubbish\n")
    found = deploy.report()
    task = the_task(found)
    assert names(task["in_flight"]) == {"hold"}, "a forged end counts for nothing"
    assert task["files"]["after"] == ["after.txt"]
    doubts = "\n".join(task["not_known"])
    assert "2 lines of its marks" in doubts and "2 of its calls" in doubts and "who wrote to its marks" in doubts
    assert "SINCE THEN   after.txt" in agentbox("report", deploy.run, check=0).stdout


@pytest.mark.bed("host")
def test_a_worker_that_marks_no_ends_has_no_calls_in_flight_that_are_known(
    home: Path, tmp_path: Path, bed: str
) -> None:
    command = f"sh {GATE} gate one; sh {GATE} gate two; : > ready; exec sleep 100"
    agentbox("run", "-d", "--run-id", "rep-half", "--backend", "cgroup", "--", "sh", "-c", command, cwd=tmp_path)
    wait_for((tmp_path / "ready").exists)
    agentbox("kill", "rep-half", check=0)
    agentbox("wait", "rep-half")
    task = the_task(report("rep-half"))
    assert not task["ends_marked"] and "which of its calls had finished: it marks no ends" in task["not_known"]
    assert "no end seen" in agentbox("report", "rep-half", check=0).stdout


@pytest.mark.bed("host")
def test_a_record_that_was_changed_or_is_gone(deploy: Deploy, home: Path) -> None:
    deploy.start("hold")
    deploy.kill()
    manifest = home / "runs" / deploy.run / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(lines[:2] + lines[3:]))
    assert deploy.report()["record"] == "changed"
    manifest.unlink()
    found = deploy.report()
    assert found["record"] == "not known" and "not known" in found["summary"]
    assert any("no record of its creation" in line for line in found["not_known"])
    agentbox("report", deploy.run, "--html", str(home / "page.html"), check=0)


@pytest.mark.bed("host")
def test_an_emergency_stop_and_a_stop_of_one_task_before_it(deploy: Deploy) -> None:
    deploy.start("hold")
    for name in ("w1", "w2"):
        agentbox("spawn", deploy.run, "-d", "--task", name, "--", "sleep", "900", check=0)
    agentbox("kill", deploy.run, "--task", "w1", check=0)
    agentbox("estop", "-r", "all off", check=0)
    agentbox("estop", "--lift", check=0)
    agentbox("wait", deploy.run)
    found = deploy.report()
    assert [(order["order"], order["task_id"]) for order in found["orders"]] == [("STOP", "w1"), ("STOP", None)]
    assert [(stop["task_id"], stop["proof"]) for stop in found["stops"]] == [("w1", "empty"), (None, "empty")]
    assert the_task(found, "w1")["stopped_at"] == found["stops"][0]["frozen_at"] < found["stopped_at"]
    assert the_task(found, "w2")["stopped_at"] == found["stopped_at"] == found["stops"][1]["frozen_at"]
    assert "all off" in found["orders"][1]["reason"]


@pytest.mark.bed("host")
def test_a_redirect_is_told_row_by_row_and_where_a_spawned_task_works(deploy: Deploy, tmp_path: Path) -> None:
    deploy.start("hold")
    for name in ("k1", "k2", "m1", "d1"):
        agentbox("spawn", deploy.run, "-d", "--task", name, "--", "sleep", "900", cwd=deploy.folder, check=0)
    (deploy.folder / "new").touch()
    worker = the_task(deploy.report(), "k1")
    assert worker["files"]["place"] == str(deploy.folder) and "new" in worker["files"]["before"]
    rows = [{"task": "k1", "action": "keep"}, {"task": "k2", "action": "keep"}]
    rows += [{"task": "m1", "action": "modify", "delta": "the new API"}]
    rows += [{"task": "d1", "action": "drop", "why": "not needed"}]
    table = tmp_path / "table"
    table.write_text(json.dumps({"tasks": rows}))
    agentbox("redirect", deploy.run, "--table", str(table), "--grace", "0", check=0)
    found = deploy.report()
    by = f"uid {os.getuid()} "
    told = [(order["order"], order["task_id"], order["reason"]) for order in found["orders"]]
    assert told[:3] == [("RUN", None, "created"), ("keep", "k1", ""), ("keep", "k2", "")]
    assert told[3:] == [
        ("modify", "m1", "the new API"),
        ("drop", "d1", "not needed"),
        ("STOP", "d1", "dropped: not needed"),
    ]
    assert all(order["at"] and by in order["by"] for order in found["orders"])
    assert found["orders"][-1]["at"] == found["stops"][0]["ordered_at"] and found["orders"][-1]["generation"] == 2
    file = tmp_path / "report.html"
    agentbox("report", deploy.run, "--html", str(file), check=0)
    text = agentbox("report", deploy.run, check=0).stdout
    said = ("keep of tasks k1, k2 at ", "modify of task m1 at ", "drop of task d1 at ", "STOP of task d1 at ")
    assert all(part in text and part in file.read_text() for part in said)
    (stop,) = [line for line in text.splitlines() if line.startswith("  stop ")]
    assert f" by {by}" in stop and stop.endswith("; dropped: not needed")


def test_a_freeze_before_its_order_has_no_negative_distance() -> None:
    one = sample(1)
    (stop,) = one.stops
    assert stop.ordered_at
    stop.frozen_at = Time(stop.ordered_at - 0.0008)
    assert ", frozen before the order was written, " in f", {stop_text(stop)}"
    assert "-0." not in stop_text(stop) and "<dd>before the order was written</dd>" in page(one)


@pytest.mark.bed("host")
def test_who_is_killed_from_inside_is_not_called_frozen(home: Path, bed: str) -> None:
    command = " ".join(agentbox_argv("kill", "rep-own"))
    agentbox("run", "--run-id", "rep-own", "--backend", "cgroup", "--", "sh", "-c", f"{command}; sleep 100")
    found = report("rep-own")
    assert found["summary"].startswith("killed between ") and "without being frozen" in found["summary"]
    assert found["orders"][0]["inside"] is True and the_task(found)["stopped_by"] == "killed"


def test_bad_input(home: Path, tmp_path: Path) -> None:
    assert agentbox("report", "nobody").returncode == 3
    (home / "runs" / "r1").mkdir(parents=True, mode=0o700)
    one_line(agentbox("report", "r1", "--json", "--html", "-"), "stdout")
    one_line(agentbox("report", "r1", "--html", str(tmp_path / "no" / "x.html")), "cannot be written")
    assert json.loads(agentbox("report", "r1", "--json", check=0).stdout)["run_id"] == "r1"
    assert agentbox("report", "r1", "--html", "-", check=0).stdout.startswith("<!doctype html>")
