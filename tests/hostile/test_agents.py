"""Agents that do their worst by what an agent may do, one file each: a kill ends all of it and says so, nothing else.

The tricks by which a process gets away (sessions, double forks, nested, frozen, threaded and disowned cgroups, a
leader that has gone, a tracer, a command that ends before what it left) are in tests/stop/test_reach.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.stop.conftest import staged  # noqa: F401
from tests.stop.stage import Stage
from tests.support import agentbox, is_alive, wait_for

RUN = Path(__file__).parent / "agents" / "run.py"


@dataclass(frozen=True)
class Case:
    """`lies`: it writes where agentbox reads. `whole`: what `verify` says of the record afterwards.

    `kill`: the exit status; 4 says that the order or the record could not be written. `told`: the state is known.
    """

    words: str
    lies: bool = False
    whole: int = 0
    kill: int = 0
    told: bool = True

    def __str__(self) -> str:
        return self.words.replace(" ", "-")


KINDS = {"fifo": 0, "endless": 0, "sparse": 0, "folder": 4, "file": 4}
MORE_KINDS = {"loop": 0, "huge": 0, "locked": 0, "gone": 4}
CASES = [
    Case("renames_itself"),
    Case("deletes_environment"),
    Case("holds_locks", lies=True),
    Case("writes_long_lines", lies=True, whole=1),
    Case("wrecks_its_cgroups"),
    Case("floods_beat", lies=True),
    *(Case(f"replaces_its_order {kind}", lies=True, kill=code) for kind, code in KINDS.items()),
    Case("signals_everybody"),
    Case("ends_its_launcher"),
    Case("pesters_its_launcher"),
    Case("ignores_everything"),
    Case("storms"),
    Case("hoards_descriptors"),
    Case("closes_all"),
    Case("traces_its_end"),
    Case("names_itself_badly", lies=True),
    Case("removes_its_record", lies=True, kill=4, told=False),
]
FULL = pytest.mark.full("one more thing in the place of an order")
MORE = [pytest.param(Case(f"replaces_its_order {kind}", kill=code), marks=FULL) for kind, code in MORE_KINDS.items()]
VIEWS = (("ps", "-a", "--json"), ("reconcile", "--json"), ("inspect",), ("tree",), ("logs",))


def assert_ended(stage: Stage, found: dict[str, Any]) -> None:
    """Nothing of the run lives or moves, the twin outside does both."""
    assert (found["proof"], found["survivors"]) == ("empty", []) and found["processes"]
    before = stage.beats()
    assert stage.registered_alive() == []
    stage.twin_beats_on()
    assert stage.beats() == before
    assert is_alive(stage.twin.pid)


def assert_views_answer(stage: Stage) -> None:
    """Whatever was put where agentbox reads, each view answers, in time, with a line or with what it knows."""
    for verb, *options in VIEWS:
        of_run = () if verb in ("ps", "reconcile") else (stage.run_id,)
        done = agentbox(verb, *of_run, *options)
        assert "Traceback" not in done.stderr and "unexpected" not in done.stderr, done.stderr
        assert done.returncode in (0, 1, 2, 3), (verb, done.returncode, done.stderr)
        if done.stdout and "--json" in options:
            json.loads(done.stdout)


@pytest.mark.bed("host")
@pytest.mark.parametrize("case", [*CASES, *MORE], ids=str)
def test_kill_ends_it(staged: Callable[..., Stage], bed: str, case: Case) -> None:  # noqa: F811
    stage = staged([sys.executable, str(RUN), *case.words.split()])
    stage.start()
    if case.lies:
        assert_views_answer(stage)
    done = agentbox("kill", stage.run_id, "--json")
    assert done.returncode == case.kill, (done.returncode, done.stdout, done.stderr)
    (found,) = json.loads(done.stdout)
    assert_ended(stage, found)
    assert agentbox("spawn", stage.run_id, "--", "true").returncode == (75 if case.told else 125)
    if case.told:
        assert agentbox("wait", stage.run_id).returncode == 137
        assert agentbox("verify", stage.run_id).returncode == case.whole
        wait_for(lambda: not stage.inspect()["boxes"], what="the boxes were not removed")
        seen = stage.inspect()
        assert (seen["state"], seen["processes"]) == ("stopped", 0), seen


@pytest.mark.bed("nspawn-user")
@pytest.mark.parametrize("words", ["wrecks_its_cgroups", "ends_its_launcher", "storms", "replaces_its_order folder"])
def test_kill_ends_it_in_a_scope(staged: Callable[..., Stage], bed: str, words: str) -> None:  # noqa: F811
    """The same under a user's own manager, whose cgroup files the agent may write as well."""
    stage = staged([sys.executable, str(RUN), *words.split()])
    stage.start()
    assert_ended(stage, stage.kill(check=4 if "folder" in words else 0))
