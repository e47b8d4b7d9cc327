"""Which run is stopped: that one, no other; also without its record, twice, at once, or with a launcher in trouble."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from sandbox.manifest.writer import Writer
from tests.beds.space import start_ticks
from tests.stop.conftest import Staged
from tests.stop.stage import Stage, agent, inspect, new_id, receipt
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

EVERYWHERE = pytest.mark.bed("host", "nspawn", "nspawn-user")
BOTH = pytest.mark.bed("host", "nspawn")


def beats(stage: Stage) -> None:
    """The run lives on."""
    before = stage.beats()["beat-main"]
    wait_for(lambda: stage.beats()["beat-main"] > before, what=f"{stage.run_id} does not beat")
    assert stage.inspect()["state"] == "running"


@EVERYWHERE
@pytest.mark.parametrize("verb", ["kill", "abort"])
def test_stop_of_one_leaves_the_other_of_nearly_its_name(staged: Staged, verb: str) -> None:
    base = new_id("demo")
    pairs = ((f"{base}-1", f"{base}-10"), (f"{base}.b", f"{base}xb"))
    options = ["--grace", "0", "--term", "0"] if verb == "abort" else []
    for one, other in pairs:
        stopped, kept = staged(agent("attached"), one), staged(agent("attached"), other)
        for stage in (stopped, kept):
            stage.start()
        ambiguous = agentbox(verb, base, check=2)
        assert one in ambiguous.stderr and other in ambiguous.stderr
        assert ambiguous.stdout == ""
        found = receipt(verb, one, *options)
        # An abort looks at each rung, and the heartbeat may have begun another sleep by then.
        assert len(found["processes"]) == 3 or (verb == "abort" and len(found["processes"]) > 3)
        assert stopped.registered_alive() == []
        beats(kept)
        kept.kill()
        assert kept.registered_alive() == []


@pytest.mark.bed("host")
def test_unique_prefix_selects_and_none_is_an_error(staged: Staged) -> None:
    stage = staged(agent("attached"))
    stage.start()
    assert agentbox("kill", f"{stage.run_id}x", check=3).stdout == ""
    assert "no such run" in agentbox("kill", "x", check=3).stderr
    for bad in ("", ".", "..", "-rf", "a\nb", "a/b", "x" * 300):
        assert agentbox("kill", "--", bad).returncode in (2, 3), bad
    beats(stage)
    agentbox("kill", stage.run_id[:-2], check=0)
    assert stage.registered_alive() == []


@pytest.mark.bed("host")
def test_exact_id_wins_also_where_its_record_is_gone(home: Path, staged: Staged) -> None:
    """It must not pass for the beginning of another run's id."""
    other = staged(agent("attached"))
    base = other.run_id
    longer = staged(agent("attached"), f"{base}-2")
    for stage in (other, longer):
        stage.start()
    (home / "runs" / base).rename(home / "gone")
    for verb in (("spawn", base, "--", "true"), ("pause", base)):
        assert f"the record of run {base} is gone" in agentbox(*verb).stderr
    assert "ambiguous" in agentbox("kill", base[:-1], check=2).stderr
    found = json.loads(agentbox("kill", base, "--json", check=4).stdout)
    assert [one["run_id"] for one in found] == [base] and len(found[0]["processes"]) == 3
    assert other.registered_alive() == []
    beats(longer)
    agentbox("kill", f"{base}-", check=0)
    assert longer.registered_alive() == []


@pytest.mark.bed("host")
@pytest.mark.parametrize("verb", ["kill", "abort"])
def test_run_of_another_machine_is_not_called_empty(home: Path, verb: str) -> None:
    """A state directory may be shared; this kernel shows nothing of what another one runs."""
    run = new_id("there")
    agentbox("run", "-d", "--backend", "cgroup", "--run-id", run, "--", "sleep", "900", check=0)
    record = home / "runs" / run / "manifest.jsonl"
    lines, own = record.read_text(), json.loads(record.read_text().splitlines()[0])
    agentbox("kill", run, check=0)
    wait_for(lambda: "run.ended" in record.read_text())
    there = lines.replace(f'"host":"{own["host"]}"', '"host":"node-b"').replace(own["boot_id"], str(uuid.uuid4()))
    record.write_text(there)
    for _ in range(2):
        done = agentbox(verb, run, "--json", check=1)
        (found,) = json.loads(done.stdout)
        assert found["proof"] == "unknown" and found["empty_at"] is None and found["survivors"] == []
        assert "started on host node-b" in done.stderr
    record.write_text(there.replace("node-b", own["host"]))
    agentbox("kill", run, check=0)  # here, and before a reboot


@EVERYWHERE
def test_kill_of_all_runs(staged: Staged, home: Path) -> None:
    stages = [staged(agent(trick)) for trick in ("attached", "double_fork", "frozen")]
    for stage in stages:
        stage.start()
    other_home = home.with_name("other")
    other = new_id("other")
    agentbox("run", "-d", "--run-id", other, "--", "sleep", "900", home=other_home, check=0)
    found = json.loads(agentbox("kill", "--all", "--json", check=0).stdout)
    assert {one["run_id"] for one in found} == {stage.run_id for stage in stages}
    for stage in stages:
        assert stage.registered_alive() == []
        assert is_alive(stage.twin.pid)
    assert json.loads(agentbox("kill", "--all", "--json", check=0).stdout) == []
    (left,) = json.loads(agentbox("ps", "--json", home=other_home, check=0).stdout)
    assert (left["run_id"], left["state"], left["processes"]) == (other, "running", 1)
    agentbox("kill", "--all", home=other_home, check=0)
    assert agentbox("wait", other, home=other_home).returncode == 137


@EVERYWHERE
@pytest.mark.parametrize("what", ["deleted", "renamed", "directory renamed", "directory deleted"])
def test_run_without_its_record_is_listed_and_killed(staged: Staged, home: Path, what: str) -> None:
    """By the id that `ps` shows. Only where nothing could be written is the exit status 4."""
    stage = staged(agent("attached"))
    stage.start()
    folder = home / "runs" / stage.run_id
    if what == "deleted":
        (folder / "manifest.jsonl").unlink()
    elif what == "renamed":
        (folder / "manifest.jsonl").rename(folder / "old")
    elif what == "directory renamed":
        folder.rename(home / "elsewhere")
    else:
        subprocess.run(["rm", "-r", str(folder)], check=True)
    (shown,) = json.loads(agentbox("ps", "--json", check=0).stdout)
    assert (shown["run_id"], shown["proof"], shown["processes"]) == (stage.run_id, "alive", 3)
    assert stage.run_id in agentbox("ps", check=0).stdout
    found = stage.kill(check=4 if what.startswith("directory") else 0)
    assert len(found["processes"]) == 3 and found["proof"] == "empty"
    assert stage.registered_alive() == []
    stage.twin_beats_on()
    wait_for(lambda: json.loads(agentbox("ps", "--json", check=0).stdout) == [])
    if not what.startswith("directory"):
        assert agentbox("wait", stage.run_id).returncode == 137


@EVERYWHERE
def test_second_kill_changes_nothing_and_still_proves(staged: Staged, home: Path) -> None:
    stage = staged(agent("attached"))
    stage.start()
    stage.assert_stopped(stage.kill("--reason", "first"))
    folder = home / "runs" / stage.run_id
    before = (folder / "manifest.jsonl").read_bytes(), (folder / "ctl/control").read_bytes()
    found = stage.kill("--reason", "second")
    assert (found["proof"], found["processes"]) == ("empty", [])
    assert ((folder / "manifest.jsonl").read_bytes(), (folder / "ctl/control").read_bytes()) == before
    assert stage.inspect()["reason"] == "first"
    agentbox("verify", stage.run_id, check=0)


@EVERYWHERE
def test_kills_at_once_all_prove(staged: Staged) -> None:
    stage = staged(agent("hopper"))
    stage.start()
    argv = agentbox_argv("kill", stage.run_id, "--json")
    pipe = subprocess.PIPE
    kills = [subprocess.Popen(argv, env=agentbox_env(), stdout=pipe, stderr=pipe, text=True) for _ in range(6)]
    said = [one.communicate(timeout=60) for one in kills]
    assert [one.returncode for one in kills] == [0] * 6, said
    found = [json.loads(out)[0] for out, _ in said]
    assert all(one["proof"] == "empty" for one in found)
    assert any(one["processes"] for one in found)
    stage.assert_stopped(None)
    agentbox("verify", stage.run_id, check=0)


def launcher_of(run_id: str) -> int:
    """The pid of the main task's launcher."""
    return int(inspect(run_id)["task_list"][0]["launcher"]["pid"])


@EVERYWHERE
def test_launcher_that_was_stopped_reports_the_end(staged: Staged) -> None:
    """As Ctrl+Z leaves it: the kill needs no help of it, and continues it afterwards."""
    stage = staged(agent("attached"))
    stage.start()
    os.kill(launcher_of(stage.run_id), signal.SIGSTOP)
    stage.assert_stopped(stage.kill())
    assert stage.inspect()["ended"]["code"] == 137


@EVERYWHERE
def test_run_whose_launcher_was_killed(staged: Staged) -> None:
    """It runs on, it is told so, and one kill ends and removes it."""
    stage = staged(agent("double_fork"))
    stage.start()
    launcher, ticks = launcher_of(stage.run_id), start_ticks(launcher_of(stage.run_id))
    os.kill(launcher, signal.SIGKILL)
    wait_for(lambda: not is_alive(launcher) or start_ticks(launcher) != ticks)
    beats(stage)
    assert stage.inspect()["launcher_alive"] is False
    assert "launcher gone" in agentbox("ps", check=0).stdout
    stage.assert_stopped(stage.kill())


@EVERYWHERE
def test_runs_id_stays_taken(staged: Staged) -> None:
    """While it lives, while it dies, and after: its record is not to be mixed with another's."""
    stage = staged(agent("attached"))
    stage.start()
    again = ("run", "-d", "--run-id", stage.run_id, "--", "true")
    assert "taken" in agentbox(*again, check=125).stderr
    beats(stage)
    stage.kill()
    assert "taken" in agentbox(*again, check=125).stderr
    stage.assert_stopped(None)
    assert "taken" in agentbox(*again, check=125).stderr


@BOTH
def test_emptiness_before_the_start_is_no_end(home: Path, bed: str) -> None:
    """A run is `starting` while its launcher lives and the record tells of no start yet."""
    run_id = new_id()
    folder = home / "runs" / run_id
    (folder / "ctl/tasks").mkdir(parents=True)
    (folder / "ctl/control").write_text("RUN 1\n")
    writer = Writer(str(folder / "manifest.jsonl"), run_id)
    writer.append("run.created", argv=["true"], backend="cgroup", main_task="main")
    launcher = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid())}
    writer.append("task.intent", task_id="main", argv=["true"], backend="cgroup", launcher=launcher)
    assert (inspect(run_id)["state"], inspect(run_id)["proof"]) == ("starting", "empty")
    (shown,) = json.loads(agentbox("ps", "--json", check=0).stdout)
    assert shown["run_id"] == run_id
    waiter = subprocess.Popen(agentbox_argv("wait", run_id), env=agentbox_env())
    assert receipt("kill", run_id)["proof"] == "empty"
    launcher["start_ticks"] = 1  # somebody else's pid by now
    writer.append("task.intent", task_id="main", argv=["true"], backend="cgroup", launcher=launcher)
    assert waiter.wait(timeout=60) == 137
    assert inspect(run_id)["state"] == "stopped"


@BOTH
def test_nothing_starts_in_a_run_that_has_ended(staged: Staged) -> None:
    """Also a moment after: the queued worker of an agent that has exited is refused."""
    stage = staged(["sh", "-c", ": > ready; : > beat-main; while ! [ -e go-on ]; do sleep 0.01; done"])
    stage.start()
    (stage.folder / "go-on").touch()
    assert agentbox("wait", stage.run_id).returncode == 0
    late = agentbox("spawn", stage.run_id, "--", "touch", str(stage.folder / "late"), check=75)
    assert stage.run_id in late.stderr
    assert not (stage.folder / "late").exists()
    assert stage.inspect()["state"] == "exited"
