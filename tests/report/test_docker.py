"""The report of a container: its processes, its calls, and what of its files is not known."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.beds.base import TREE
from tests.beds.dockerd import IMAGE, Dockerd
from tests.cli.runs import records
from tests.report.conftest import report
from tests.support import agentbox, wait_for

GATE = (TREE / "sandbox" / "harness" / "gate.sh").read_text()


@pytest.mark.bed("dockerd")
def test_a_container_that_is_killed_in_a_call(home: Path, dockerd: Dockerd) -> None:
    work = f"printf %s {shlex.quote(GATE)} > /gate; sh /gate gate build; sh /gate tick build; sh /gate gate push"
    options = ("-d", "--run-id", "rep-dock", "--image", IMAGE)
    agentbox("run", *options, "--", "sh", "-c", f"{work}; setsid sleep 800 & exec sleep 900", check=0)
    beat = home / "runs" / "rep-dock" / "beat" / "main"
    wait_for(lambda: beat.exists() and "push" in beat.read_text(), 60)
    wait_for(lambda: "sleep 900" in agentbox("tree", "rep-dock", check=0).stdout, 60)
    agentbox("kill", "rep-dock", check=0)
    agentbox("wait", "rep-dock")
    found = report("rep-dock")
    (started,) = records("rep-dock", "task.started")
    dockerd.engine.remove(started["box"]["id"])
    (task,) = found["tasks"]
    assert [call["name"] for call in task["in_flight"]] == ["push"] and len(task["calls"]) == 2
    assert {"sleep 800", "sleep 900"} <= {" ".join(one["argv"]) for one in task["processes"]}
    assert found["unplaced"] == [] and task["stopped_by"] == "frozen"
    assert any("in its container" in line for line in task["not_known"]) and task["files"] is None
    dockerd.engine.remove("agentbox-rep-dock-main")
