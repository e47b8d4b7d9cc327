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

import pytest

from tests.stop.conftest import staged  # noqa: F401
from tests.stop.stage import Stage
from tests.support import agentbox, is_alive, wait_for

RUN = Path(__file__).parent / "agents" / "run.py"


@dataclass(frozen=True)
class Case:
    """`whole`: what `verify` says of the record afterwards. `kill`: the exit status. `told`: the state is known."""

    words: str
    whole: int = 0
    kill: int = 0
    told: bool = True

    def __str__(self) -> str:
        return self.words.replace(" ", "-")


CASES = [
    Case("renames_itself"),
    Case("deletes_environment"),
    Case("holds_locks"),
    Case("writes_long_lines", whole=1),
    Case("wrecks_its_cgroups"),
    Case("floods_beat"),
    *(Case(f"replaces_its_order {kind}") for kind in ("fifo", "endless", "loop", "huge", "sparse", "locked")),
    *(Case(f"replaces_its_order {kind}", kill=4) for kind in ("folder", "gone", "file")),
    Case("signals_everybody"),
    Case("ends_its_launcher"),
    Case("pesters_its_launcher"),
    Case("ignores_everything"),
    Case("storms"),
    Case("hoards_descriptors"),
    Case("closes_all"),
    Case("traces_its_end"),
    Case("names_itself_badly"),
    Case("removes_its_record", kill=4, told=False),
]


@pytest.mark.bed("host")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kill_ends_it(staged: Callable[..., Stage], bed: str, case: Case) -> None:  # noqa: F811
    stage = staged([sys.executable, str(RUN), *case.words.split()])
    stage.start()
    done = agentbox("kill", stage.run_id, "--json")
    assert done.returncode == case.kill, (done.returncode, done.stdout, done.stderr)
    (found,) = json.loads(done.stdout)
    assert (found["proof"], found["survivors"]) == ("empty", []) and found["processes"]
    before = stage.beats()
    assert stage.registered_alive() == []
    stage.twin_beats_on()
    assert stage.beats() == before
    assert is_alive(stage.twin.pid)
    assert agentbox("spawn", stage.run_id, "--", "true").returncode == (75 if case.told else 125)
    if case.told:
        assert agentbox("wait", stage.run_id).returncode == 137
        assert agentbox("verify", stage.run_id).returncode == case.whole
        wait_for(lambda: not stage.inspect()["boxes"], what="the boxes were not removed")
        seen = stage.inspect()
        assert (seen["state"], seen["processes"]) == ("stopped", 0), seen
