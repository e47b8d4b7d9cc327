"""Pause, resume and redirect of a fleet of sixteen workers that pass the real gate."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.control.orders import read_order
from sandbox.control.status import launcher_identity, status
from sandbox.control.table import parse
from sandbox.errors import AgentboxError
from sandbox.harness.beat import Mark, marks
from sandbox.kernel.identity import Identity
from sandbox.launch.finish import ENDING_BY_ITSELF_SECONDS
from sandbox.manifest.home import Home
from tests.beds.base import TREE
from tests.boundary.test_gate import HARNESS
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for
from tests.worktree.conftest import git_config as git_config
from tests.worktree.conftest import out
from tests.worktree.conftest import repo as repo

WORKER = TREE / "tests" / "boundary" / "worker.sh"
NAMES = [f"w{number:02d}" for number in range(16)]
SLOW, QUICK = NAMES[:8], NAMES[8:]
FLEET = f"fleet-{uuid.uuid4().hex[:8]}"
RUN = f"r-{uuid.uuid4().hex[:8]}"
GATED = f"sh {HARNESS}/gate.sh gate work; sh {HARNESS}/gate.sh tick work"
LONG = 10.0
SHORT = 0.3
CHECKPOINT = f'"{sys.executable}" -m sandbox.cli.main checkpoint "$done" >/dev/null'
COMMIT = 'git commit -q -m "step $done"'


class Fleet:
    """A run with sixteen workers, each in a worktree of its own; the first eight make calls of ten seconds.

    `files`: what each has done, beside the worktrees.
    """

    def __init__(self, home: Path, repo: Path, folder: Path) -> None:
        self.home, self.repo = home, repo
        self.files = {name: folder / name for name in NAMES}
        gate = f"sh {HARNESS}/gate.sh"
        main = f"{gate} gate plan; {gate} tick plan; exec sleep 1000"
        agentbox("run", "-d", "--run-id", FLEET, "--", "sh", "-c", main, check=0)
        starts = [self.start(name) for name in NAMES]
        errors = [start.communicate(timeout=120)[1] for start in starts]
        assert [start.returncode for start in starts] == [0] * len(NAMES), errors

    def start(self, name: str) -> subprocess.Popen[str]:
        seconds, count, commit = (LONG, 5, CHECKPOINT) if name in SLOW else (SHORT, 200, COMMIT)
        worker = ["sh", str(WORKER), str(HARNESS / "gate.sh"), str(self.files[name]), str(seconds), str(count), commit]
        options = ("-d", "--worktree", "--base", "origin/main", "--task", name)
        argv = agentbox_argv("spawn", FLEET, *options, "--", *worker)
        return subprocess.Popen(
            argv, cwd=self.repo, env=agentbox_env(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )

    def lines(self, name: str) -> list[str]:
        return self.files[name].read_text().splitlines() if self.files[name].exists() else []

    def tree(self, name: str) -> Path:
        return self.repo.parent / f"wt-{FLEET}-{name}"

    def branches(self) -> set[str]:
        return set(out(self.repo, "for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines())

    def marks(self, name: str) -> list[Mark]:
        return marks(Home(str(self.home)).run_dir(FLEET).beat(name))

    def calls(self, name: str) -> list[str]:
        return [mark.name for mark in self.marks(name) if mark.word == "call"]

    def identities(self) -> dict[str, tuple[int | None, int | None]]:
        tasks = status(Home(str(self.home)), FLEET).run.tasks
        return {name: (tasks[name].pid, tasks[name].start_ticks) for name in NAMES}

    def orders(self) -> dict[str, bytes]:
        run = Home(str(self.home)).run_dir(FLEET)
        return {name: Path(run.task_order(name)).read_bytes() for name in NAMES}

    def all_at_work(self) -> bool:
        return all(self.lines(name) for name in QUICK) and all(self.calls(name) for name in SLOW)

    def pause(self) -> dict[str, Any]:
        done = agentbox("pause", FLEET, "--wait", "60s", "--json", timeout=90)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return dict(json.loads(done.stdout))


@pytest.fixture
def fleet(home: Path, repo: Path, tmp_path: Path, bystander: subprocess.Popen[bytes]) -> Iterator[Fleet]:
    try:
        yield Fleet(home, repo, tmp_path)
    finally:
        agentbox("kill", FLEET, check=0)


def nothing_twice(fleet: Fleet, name: str) -> bool:
    """Each step once, none left out: beside the tree, and as commits."""
    steps = [line for line in fleet.lines(name) if line.startswith("step")]
    commits = out(fleet.tree(name), "log", "--reverse", "--format=%s", "origin/main..HEAD").splitlines()
    words = f"wip: {name}" if name in SLOW else "step"
    expected = [f"{words} {number}" for number in range(len(commits))]
    assert commits == expected
    return steps == [f"step {number}" for number in range(len(steps))]


def longest_call(fleet: Fleet) -> float:
    """In seconds, by the workers' own marks."""
    seen = [fleet.marks(name) for name in NAMES]
    began = [{mark.name: mark.at for mark in one if mark.word == "call"} for one in seen]
    ended = [{mark.name: mark.at for mark in one if mark.word == "tick"} for one in seen]
    return max(end[name] - start[name] for start, end in zip(began, ended, strict=True) for name in end)


def test_a_pause_brings_a_fleet_to_rest_and_each_goes_on_where_it_was(fleet: Fleet) -> None:
    wait_for(fleet.all_at_work, 60)
    # Well into each call, so that what the looking itself takes does not count.
    wait_for(lambda: all(time.time() - fleet.marks(name)[0].at > LONG / 4 for name in SLOW), 30)
    told = fleet.pause()
    assert told["quiet"] is True
    tasks = {task["task_id"]: task for task in told["tasks"]}
    assert {tasks[name]["state"] for name in NAMES} <= {"quiet", "idle"}
    assert longest_call(fleet) >= LONG
    assert told["seconds"] <= longest_call(fleet)
    assert {name: tasks[name]["dirty"] for name in NAMES} == dict.fromkeys(NAMES, False)
    assert {name: tasks[name]["worktree"] for name in NAMES} == {name: str(fleet.tree(name)) for name in NAMES}
    assert [out(fleet.tree(name), "status", "--porcelain") for name in NAMES] == [""] * len(NAMES)
    before = {name: fleet.lines(name) for name in NAMES}
    assert {len(before[name]) for name in SLOW} == {1}, "the call that was under way was ended, and no other begun"
    again = agentbox("pause", FLEET, "--wait", "2s")
    assert again.returncode == 0, "pausing what is paused changes nothing"
    assert "dirty worktrees: 0" in again.stdout
    assert {name: fleet.lines(name) for name in NAMES} == before, "a quiet worker worked on"
    assert json.loads(agentbox("ps", "--json").stdout)[0]["state"] == "paused"
    first, second = (agentbox("resume", FLEET, check=0).stdout for _ in range(2))
    assert "was not paused" not in first and "was not paused" in second
    assert first.split()[-1] == second.split()[-1], "resuming what runs changes nothing"
    wait_for(lambda: all(fleet.calls(name) == ["step0", "step1"] for name in SLOW), 30)
    wait_for(lambda: all(len(fleet.lines(name)) > len(before[name]) for name in QUICK), 30)
    assert all(nothing_twice(fleet, name) for name in NAMES)


def test_a_task_without_a_gate_is_told_as_such(home: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    done = agentbox("pause", RUN, "--json")
    assert [task["state"] for task in json.loads(done.stdout)["tasks"]] == ["no gate"]
    assert done.returncode == 1
    waited = agentbox("pause", RUN, "--wait", "0.5s", check=1)
    assert "no gate" in waited.stdout and waited.stdout.splitlines()[0].endswith(" (main)")
    assert "waiting for main: no gate was passed so far" in waited.stderr
    listed = agentbox("ps", check=0).stdout.splitlines()[1].split()
    assert listed[:2] == [RUN, "pausing"] and json.loads(agentbox("ps", "--json").stdout)[0]["state"] == "paused"
    agentbox("kill", RUN, check=0)


def test_what_is_said_of_a_change_that_waits_and_of_what_was_not_paused(home: Path, tmp_path: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sh", "-c", f"{GATED}; exec sleep 1000", check=0)
    agentbox("spawn", RUN, "-d", "--task", "g", "--", "sh", "-c", f"{GATED}; exec sleep 1000", check=0)
    agentbox("spawn", RUN, "-d", "--task", "n", "--", "sleep", "1000", check=0)
    run = Home(str(home)).run_dir(RUN)
    wait_for(lambda: all([m.word for m in marks(run.beat(name))] == ["call", "tick"] for name in ("main", "g")))
    table = tmp_path / "table"
    table.write_text(json.dumps({"tasks": [{"task": name, "action": "modify", "delta": "x"} for name in "gn"]}))
    said = agentbox("redirect", RUN, "--table", str(table), check=0).stdout
    assert "modified: g (its delta waits for its next boundary)\n" in said
    assert "modified: n (no gate was seen: its delta may never be read)\n" in said
    assert json.loads(agentbox("redirect", RUN, "--table", str(table), "--json", check=0).stdout)["no_gate"] == ["n"]
    assert (
        agentbox("resume", RUN, "--task", "g", check=0).stdout == f"{RUN} task g: was not paused, RUN (generation 1)\n"
    )
    assert "g: idle for " in agentbox("pause", RUN, "--task", "g", check=0).stdout
    agentbox("pause", RUN)
    said = agentbox("resume", RUN, "--task", "g", check=0).stdout
    assert said == f"{RUN} task g: RUN (generation 3); the run is paused: agentbox resume {RUN}\n"
    agentbox("kill", RUN, "--task", "n", check=0)
    wait_for(lambda: agentbox("ps", check=0).stdout.splitlines()[1].split()[1] == "paused")
    agentbox("kill", RUN, check=0)


def test_work_that_is_not_committed_is_told(home: Path, repo: Path) -> None:
    script = f"{GATED}; echo x >new; exec sleep 1000"
    agentbox("run", "-d", "--run-id", RUN, "--worktree", "--", "sh", "-c", script, cwd=repo, check=0)
    tree = repo.parent / f"wt-{RUN}-main"
    wait_for(lambda: (tree / "new").exists())
    (task,) = json.loads(agentbox("pause", RUN, "--wait", "20s", "--json", check=0).stdout)["tasks"]
    assert (task["state"], task["worktree"], task["dirty"]) == ("idle", str(tree), True)
    said = agentbox("pause", RUN, check=0).stdout
    assert "dirty worktrees: 1" in said and f"dirty worktree {tree}" in said
    (tree / ".git").rename(tree / "git")
    assert json.loads(agentbox("pause", RUN, "--json", check=0).stdout)["tasks"][0]["dirty"] is None
    assert "can't tell if dirty" in agentbox("pause", RUN, check=0).stdout
    (tree / "git").rename(tree / ".git")
    agentbox("kill", RUN, check=0)
    assert (tree / "new").read_text() == "x\n"


def test_the_clock_of_a_timeout_runs_on_during_a_pause(home: Path) -> None:
    argv = ("run", "-d", "--run-id", RUN, "--timeout", "15s", "--", "sh", "-c", f"{GATED}; exec sleep 1000")
    agentbox(*argv, check=0)
    beat = Home(str(home)).run_dir(RUN).beat("main")
    wait_for(lambda: [mark.word for mark in marks(beat)] == ["call", "tick"])
    assert "--timeout (15s) runs on" in agentbox("pause", RUN, check=0).stdout
    agentbox("wait", RUN, check=124)
    assert "--timeout" in agentbox("pause", "--help", check=0).stdout


def test_a_pause_while_a_stop_runs_changes_nothing(home: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    control = Home(str(home)).run_dir(RUN).control
    stop = subprocess.Popen(agentbox_argv("abort", RUN, "--grace", "600s"), env=agentbox_env())
    try:
        wait_for(lambda: read_order(control).word == "STOP")
        before = Path(control).read_bytes()
        for verb in ("pause", "resume"):
            assert "STOP" in agentbox(verb, RUN, check=75).stderr
        assert Path(control).read_bytes() == before and stop.poll() is None
        agentbox("kill", RUN, check=0)
        assert stop.wait(30) == 0
    finally:
        stop.kill()
        stop.wait()
    assert json.loads(agentbox("ps", "-a", "--json", check=0).stdout)[0]["state"] == "stopped"


def test_what_has_ended_has_nothing_to_hold(home: Path) -> None:
    agentbox("run", "--run-id", RUN, "--", "true", check=0)
    for verb in ("pause", "resume"):
        assert "STOP is final" in agentbox(verb, RUN, check=75).stderr


def test_a_redirect_keeps_twelve_modifies_two_and_drops_two(fleet: Fleet, tmp_path: Path) -> None:
    wait_for(fleet.all_at_work, 60)
    kept = [name for name in NAMES if name not in ("w08", "w09", "w10", "w11")]
    identities, before, branches = fleet.identities(), fleet.orders(), fleet.branches()
    draft = json.loads(agentbox("redirect", FLEET, "--draft", "--touches", "work", check=0).stdout)
    assert [row["task"] for row in draft["tasks"]] == NAMES
    assert all((row["action"], row["touched"]) == ("modify", ["work"]) for row in draft["tasks"])
    changes = {name: {"action": "modify", "delta": {"instead": name}} for name in ("w08", "w09")}
    changes |= {name: {"action": "drop", "why": "no longer wanted"} for name in ("w10", "w11")}
    rows = [{"task": name, **changes.get(name, {"action": "keep"})} for name in NAMES]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"tasks": rows}))
    done = agentbox("redirect", FLEET, "--table", str(table), "--grace", "20s", "--json", check=0)
    told = json.loads(done.stdout)
    marked = {name: f"abandoned/{FLEET}/{name}" for name in ("w10", "w11")}
    assert (told["kept"], told["modified"]) == (kept, ["w08", "w09"])
    assert told["dropped"] == [{"task": name, "proof": "empty"} for name in ("w10", "w11")]
    assert (told["branches"], told["problems"]) == (marked, [])

    def deltas(name: str) -> list[str]:
        return [line for line in fleet.lines(name) if line.startswith("delta")]

    wait_for(lambda: deltas("w08") and deltas("w09"), 30)
    grown = {name: len(fleet.lines(name)) for name in QUICK}
    wait_for(lambda: all(len(fleet.lines(n)) > grown[n] + 2 for n in QUICK if n not in marked), 30)
    assert [len(deltas(name)) for name in NAMES] == [1 if name in ("w08", "w09") else 0 for name in NAMES]
    assert '"instead": "w08"' in deltas("w08")[0] and '"instead": "w09"' in deltas("w09")[0]
    assert all(nothing_twice(fleet, name) for name in NAMES)
    after, orders_after = fleet.identities(), fleet.orders()
    for name in kept:
        assert "signal" not in fleet.lines(name)
        assert after[name] == identities[name] and Identity.of(after[name][0] or 0) is not None
        assert orders_after[name] == before[name], "the order of a kept task was touched"
    assert fleet.branches() == branches - {f"agent/{FLEET}/{name}" for name in marked} | set(marked.values())
    assert all(out(fleet.tree(name), "symbolic-ref", "--short", "HEAD") == marked[name] for name in marked)
    records = [json.loads(line) for line in agentbox("manifest", FLEET, check=0).stdout.splitlines()]
    assert [one["table"]["tasks"][8]["delta"] for one in records if one["event"] == "steer.table"] == [
        {"instead": "w08"}
    ]
    starts = [one["task_id"] for one in records if one["event"] == "task.started"]
    assert sorted(starts) == sorted(["main", *NAMES]), "a task was started twice"
    assert {one["task_id"] for one in records if one["event"] == "task.exited"} == set(marked)
    again = agentbox("redirect", FLEET, "--table", str(table), check=2)
    assert "not in flight: w10, w11" in again.stderr, "a table counts once"
    assert agentbox("manifest", FLEET, check=0).stdout.count('"steer.table"') == 1


def test_what_a_dropped_worker_leaves_behind_has_its_grace_and_a_sigterm(home: Path, tmp_path: Path) -> None:
    """Though its launcher sees the command end long before."""
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    behind = '(trap "echo term >$1; exit" TERM; touch $1.ready; while :; do sleep 0.1; done) &'
    worker = f"{behind} while sh $0 gate x; do sh $0 tick x; sleep 0.1; done"
    for name in ("a", "b"):
        command = ["sh", "-c", worker, str(HARNESS / "gate.sh"), str(tmp_path / name)]
        agentbox("spawn", RUN, "-d", "--task", name, "--", *command, check=0)
        wait_for((tmp_path / f"{name}.ready").exists)
    table = tmp_path / "table"
    table.write_text(json.dumps({"tasks": [{"task": name, "action": "drop", "why": "x"} for name in ("a", "b")]}))
    agentbox("redirect", RUN, "--table", str(table), "--grace", f"{ENDING_BY_ITSELF_SECONDS + 2}s", check=0)
    assert [(tmp_path / name).exists() for name in ("a", "b")] == [True, True]
    agentbox("kill", RUN, check=0)


REFUSED = [
    ('{"tasks": []}', "missing: a, b"),
    ('{"tasks": [{"task": "a", "action": "keep"}]}', "missing: b"),
    ('{"tasks": [{"task": "a", "action": "keep"}, {"task": "a", "action": "keep"}]}', "twice: a"),
    ('{"tasks": [{"task": "a", "action": "keep"}, {"task": "c", "action": "keep"}]}', "not in flight: c"),
    ('{"tasks": [{"task": "a", "action": "modify"}, {"task": "b", "action": "keep"}]}', "needs a delta"),
    ('{"tasks": [{"task": "a", "action": "drop"}, {"task": "b", "action": "keep"}]}', "needs a why"),
    ('{"tasks": [{"task": "a", "action": "burn"}]}', "none of keep, modify, drop"),
    ('{"tasks": [{"task": "a", "action": "keep", "colour": 1}]}', "unknown field colour"),
    ('{"tasks": [{"action": "keep"}]}', "names no task"),
    ('{"tasks": {}}', "no `tasks` array"),
    ("[[tasks]]\ntask = 'a'\naction = 'keep'\n", "missing: b"),
    ("no table", "neither JSON"),
    ("[" * 100000, "neither JSON"),
]


def test_a_table_that_does_not_fit_is_refused_and_changes_nothing(home: Path, tmp_path: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    for name in ("a", "b"):
        agentbox("spawn", RUN, "-d", "--task", name, "--", "sleep", "1000", check=0)
    before = agentbox("manifest", RUN).stdout
    table = tmp_path / "table"
    for text, said in REFUSED:
        with pytest.raises(AgentboxError, match=said) as error:
            parse(text, ["a", "b"])
        assert error.value.code == 2
    for text, said in (REFUSED[1], REFUSED[-1]):
        table.write_text(text)
        done = agentbox("redirect", RUN, "--table", str(table), check=2)
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert agentbox("manifest", RUN).stdout == before
    agentbox("redirect", RUN, "--table", str(tmp_path / "none"), check=2)
    agentbox("redirect", RUN, check=2)
    agentbox("kill", RUN, check=0)
    assert agentbox("redirect", RUN, "--draft").returncode == 2
    assert "under order STOP" in agentbox("redirect", RUN, "--table", str(table), check=75).stderr


def test_a_task_that_ended_with_its_launcher_gone_is_not_in_flight(home: Path, tmp_path: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    for name in ("a", "b", "c"):
        agentbox("spawn", RUN, "-d", "--task", name, "--", "sleep", "1000", check=0)
    for name in ("a", "b"):
        launcher = launcher_identity(status(Home(str(home)), RUN).run.tasks[name])
        assert launcher and launcher.signal(signal.SIGKILL)
        wait_for(lambda one=launcher: one.alive() is False)
    agentbox("kill", RUN, "--task", "a", check=0)
    table = tmp_path / "table"
    table.write_text(agentbox("redirect", RUN, "--draft", check=0).stdout)
    assert [row["task"] for row in json.loads(table.read_text())["tasks"]] == ["b", "c"]
    agentbox("redirect", RUN, "--table", str(table), check=0)
    held = json.loads(agentbox("pause", RUN, "--json", check=1).stdout)["tasks"]
    assert {task["task_id"]: task["state"] for task in held} == {
        "main": "no gate", "a": "ended", "b": "no gate", "c": "no gate"
    }  # fmt: skip
    agentbox("kill", RUN, check=0)


def test_one_redirect_at_a_time_and_no_new_task_meanwhile(home: Path, tmp_path: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    agentbox("spawn", RUN, "-d", "--task", "a", "--", "sleep", "1000", check=0)
    table = tmp_path / "table"
    table.write_text('[[tasks]]\ntask = "a"\naction = "drop"\nwhy = "x"\n')
    first = subprocess.Popen(
        ["python3", "-c", "import fcntl,os,sys,time; fd=os.open(sys.argv[1],os.O_RDONLY); fcntl.flock(fd,2);"
         "print(flush=True); time.sleep(900)", f"{home}/runs/{RUN}/steer"], stdout=subprocess.PIPE,
    )  # fmt: skip
    assert first.stdout
    first.stdout.readline()
    try:
        assert "under way" in agentbox("redirect", RUN, "--table", str(table), check=75).stderr
        assert "under way" in agentbox("spawn", RUN, "-d", "--", "true", check=75).stderr
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    assert "is taken" in agentbox("spawn", RUN, "-d", "--task", "a", "--", "true", check=125).stderr
    # It passes no gate: what does not leave at a boundary takes the ladder.
    assert "dropped: a (empty)" in agentbox("redirect", RUN, "--table", str(table), "--grace", "0", check=0).stdout
    assert "is taken" in agentbox("spawn", RUN, "-d", "--task", "a", "--", "true", check=125).stderr
    agentbox("spawn", RUN, "--", "true", check=0)
    agentbox("kill", RUN, check=0)


def test_one_task_is_held_and_the_others_go_on(home: Path, tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    gate = f"sh {HARNESS}/gate.sh"
    agentbox("run", "-d", "--run-id", RUN, "--", "sh", "-c", f"{GATED}; exec sleep 1000", check=0)
    for name in ("a", "b"):
        script = f'while {gate} gate x; do echo step >>"{tmp_path}/{name}"; sleep 0.05; {gate} tick x; done'
        agentbox("spawn", RUN, "-d", "--task", name, "--", "sh", "-c", script, check=0)

    def steps(name: str) -> int:
        path = tmp_path / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def goes_on(name: str) -> bool:
        before = steps(name)
        return wait_for(lambda: steps(name) > before + 1, 30)

    assert goes_on("a") and goes_on("b")
    told = json.loads(agentbox("pause", RUN, "--task", "a", "--wait", "30s", "--json", check=0).stdout)
    assert [(task["task_id"], task["quiet"]) for task in told["tasks"]] == [("a", True)]
    held = steps("a")
    agentbox("resume", RUN, check=0)
    assert goes_on("b") and steps("a") == held, "the run's order does not lift a task's own"
    agentbox("pause", RUN, "--wait", "30s", check=0)
    agentbox("resume", RUN, "--task", "a", check=0)
    states = [task["quiet"] for task in json.loads(agentbox("pause", RUN, "--json", check=0).stdout)["tasks"]]
    assert states == [True] * 3 and steps("a") == held, "nor a task's the run's"
    agentbox("resume", RUN, check=0)
    assert goes_on("a") and goes_on("b")
    agentbox("kill", RUN, "--task", "a", check=0)
    for verb in ("pause", "resume"):
        agentbox(verb, RUN, "--task", "a", check=75)
    assert goes_on("b")
    agentbox("kill", RUN, check=0)


def test_orders_that_do_not_fit(home: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    agentbox("pause", RUN, "--task", "none", check=2)
    agentbox("pause", RUN, "--wait", "soon", check=2)
    agentbox("resume", "nobody", check=3)
    inside = agentbox("spawn", RUN, "--", "sh", "-c", "exec $0 -m sandbox.cli.main resume " + RUN, sys.executable)
    assert inside.returncode == 75
    assert "inside of a box" in inside.stderr
    agentbox("pause", RUN)
    assert agentbox("spawn", RUN, "--", "true").returncode == 75, "nothing starts in a paused run"
    agentbox("kill", RUN, check=0)
    assert agentbox("pause", RUN).returncode == 75
    assert agentbox("resume", RUN).returncode == 75
