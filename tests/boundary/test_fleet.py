"""Pause, resume and redirect of a fleet of sixteen workers that pass the real gate."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.control.status import status
from sandbox.kernel.identity import Identity
from sandbox.launch.finish import ENDING_BY_ITSELF_SECONDS
from sandbox.manifest.home import Home
from tests.beds.base import TREE
from tests.boundary.test_gate import HARNESS
from tests.support import agentbox, wait_for

WORKER = TREE / "tests" / "boundary" / "worker.sh"
NAMES = [f"w{number:02d}" for number in range(16)]
FLEET = f"fleet-{uuid.uuid4().hex[:8]}"
RUN = f"r-{uuid.uuid4().hex[:8]}"
LONG = 4.0
SHORT = 0.3


class Fleet:
    """A run `fleet` with sixteen workers; the first eight make long calls. `files`: what each has done."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.files = {name: folder / name for name in NAMES}
        gate = f"sh {HARNESS}/gate.sh"
        main = f"{gate} gate plan; {gate} tick plan; exec sleep 1000"
        agentbox("run", "-d", "--run-id", FLEET, "--", "sh", "-c", main, check=0)
        for number, name in enumerate(NAMES):
            seconds, count = (LONG if number < 8 else SHORT), 1000
            command = ["sh", str(WORKER), str(HARNESS / "gate.sh"), str(self.files[name]), str(seconds), str(count)]
            agentbox("spawn", FLEET, "-d", "--task", name, "--", *command, check=0)

    def lines(self, name: str) -> list[str]:
        return self.files[name].read_text().splitlines() if self.files[name].exists() else []

    def identities(self) -> dict[str, tuple[int | None, int | None]]:
        tasks = status(Home(str(self.home)), FLEET).run.tasks
        return {name: (tasks[name].pid, tasks[name].start_ticks) for name in NAMES}

    def orders(self) -> dict[str, bytes]:
        run = Home(str(self.home)).run_dir(FLEET)
        return {name: Path(run.task_order(name)).read_bytes() for name in NAMES}

    def pause(self) -> dict[str, object]:
        done = agentbox("pause", FLEET, "--wait", "60s", "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


@pytest.fixture
def fleet(home: Path, tmp_path: Path, bystander: subprocess.Popen[bytes]) -> Iterator[Fleet]:
    made = Fleet(home, tmp_path)
    yield made
    agentbox("kill", FLEET, check=0)


def steps_in_order(lines: list[str]) -> bool:
    """Each step once, none left out."""
    steps = [line for line in lines if line.startswith("step")]
    return steps == [f"step {number}" for number in range(len(steps))]


def test_a_pause_brings_a_fleet_to_rest_and_each_goes_on_where_it_was(fleet: Fleet) -> None:
    wait_for(lambda: all(fleet.lines(name) for name in NAMES[8:]), 30)
    told = fleet.pause()
    assert told["quiet"] is True
    tasks = {task["task_id"]: task for task in told["tasks"]}  # type: ignore[attr-defined]
    assert {tasks[name]["state"] for name in NAMES} <= {"quiet", "idle"}
    before = {name: fleet.lines(name) for name in NAMES}
    again = agentbox("pause", FLEET, "--wait", "2s")
    assert again.returncode == 0, "pausing what is paused changes nothing"
    assert {name: fleet.lines(name) for name in NAMES} == before, "a quiet worker worked on"
    assert json.loads(agentbox("ps", "--json").stdout)[0]["state"] == "paused"
    agentbox("resume", FLEET, check=0)
    agentbox("resume", FLEET, check=0)
    wait_for(lambda: all(len(fleet.lines(name)) > len(before[name]) for name in NAMES), 30)
    assert all(steps_in_order(fleet.lines(name)) for name in NAMES)


def test_a_task_without_a_gate_is_told_as_such(home: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    done = agentbox("pause", RUN, "--json")
    assert [task["state"] for task in json.loads(done.stdout)["tasks"]] == ["no gate"]
    assert done.returncode == 1
    assert "no gate" in agentbox("pause", RUN).stdout
    agentbox("kill", RUN, check=0)


def test_a_redirect_keeps_twelve_modifies_two_and_drops_two(fleet: Fleet, tmp_path: Path) -> None:
    wait_for(lambda: all(fleet.lines(name) for name in NAMES[8:]), 30)
    kept = [name for name in NAMES if name not in ("w08", "w09", "w10", "w11")]
    identities, before = fleet.identities(), fleet.orders()
    draft = json.loads(agentbox("redirect", FLEET, "--draft", check=0).stdout)
    assert [row["task"] for row in draft["tasks"]] == NAMES
    for row in draft["tasks"]:
        if row["task"] in ("w08", "w09"):
            row |= {"action": "modify", "delta": {"instead": row["task"]}}
        elif row["task"] in ("w10", "w11"):
            row |= {"action": "drop", "why": "no longer wanted"}
    table = tmp_path / "table.json"
    table.write_text(json.dumps(draft))
    done = agentbox("redirect", FLEET, "--table", str(table), "--grace", "20s", "--json", check=0)
    told = json.loads(done.stdout)
    assert told["kept"] == kept
    assert told["modified"] == ["w08", "w09"]
    assert told["dropped"] == [{"task": "w10", "proof": "empty"}, {"task": "w11", "proof": "empty"}]

    def deltas(name: str) -> list[str]:
        return [line for line in fleet.lines(name) if line.startswith("delta")]

    wait_for(lambda: deltas("w08") and deltas("w09"), 30)
    grown = {name: len(fleet.lines(name)) for name in NAMES[8:]}
    wait_for(lambda: all(len(fleet.lines(n)) > grown[n] + 2 for n in NAMES[8:] if n in kept), 30)
    assert [len(deltas(name)) for name in NAMES] == [1 if name in ("w08", "w09") else 0 for name in NAMES]
    assert '"instead": "w08"' in deltas("w08")[0]
    assert all(steps_in_order(fleet.lines(name)) for name in NAMES)
    after, orders_after = fleet.identities(), fleet.orders()
    for name in kept:
        assert after[name] == identities[name]
        assert orders_after[name] == before[name], "the order of a kept task was touched"
    records = agentbox("manifest", FLEET, check=0).stdout.splitlines()
    tables = [json.loads(line) for line in records if '"steer.table"' in line]
    assert len(tables) == 1
    exits = [json.loads(line) for line in records if '"task.exited"' in line]
    assert {record["task_id"] for record in exits} == {"w10", "w11"}


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
        table.write_text(text)
        done = agentbox("redirect", RUN, "--table", str(table), check=2)
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert agentbox("manifest", RUN).stdout == before
    agentbox("redirect", RUN, "--table", str(tmp_path / "none"), check=2)
    agentbox("redirect", RUN, check=2)
    agentbox("kill", RUN, check=0)
    assert agentbox("redirect", RUN, "--draft").returncode == 2


def test_one_redirect_at_a_time_and_no_new_task_meanwhile(home: Path, tmp_path: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    agentbox("spawn", RUN, "-d", "--task", "a", "--", "sleep", "1000", check=0)
    table = tmp_path / "table"
    table.write_text('{"tasks": [{"task": "a", "action": "drop", "why": "x"}]}')
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
    agentbox("redirect", RUN, "--table", str(table), "--grace", "0", check=0)
    agentbox("spawn", RUN, "--", "true", check=0)
    agentbox("kill", RUN, check=0)


def test_orders_that_do_not_fit(home: Path) -> None:
    agentbox("run", "-d", "--run-id", RUN, "--", "sleep", "1000", check=0)
    agentbox("pause", RUN, "--task", "none", check=2)
    agentbox("pause", RUN, "--wait", "soon", check=2)
    agentbox("resume", "nobody", check=3)
    inside = agentbox("spawn", RUN, "--", "sh", "-c", "exec $0 -m sandbox.cli.main resume " + RUN, _python())
    assert inside.returncode == 75
    assert "inside of a box" in inside.stderr
    agentbox("pause", RUN)
    assert agentbox("spawn", RUN, "--", "true").returncode == 75, "nothing starts in a paused run"
    agentbox("kill", RUN, check=0)
    assert agentbox("pause", RUN).returncode == 75
    assert agentbox("resume", RUN).returncode == 75
    assert Identity.of(1)


def _python() -> str:
    import sys

    return sys.executable
