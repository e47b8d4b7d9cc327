"""A process that the kernel itself holds: the stop ends at its deadline, and says honestly what is left."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stop.conftest import Staged
from tests.stop.fuse import DeadShare
from tests.stop.stage import agent
from tests.support import agentbox, wait_for


@pytest.fixture
def share(tmp_path: Path) -> Iterator[DeadShare]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and /dev/fuse")
    point = tmp_path / "share"
    point.mkdir()
    found = DeadShare(point)
    yield found
    found.close()


@pytest.mark.bed("host")
@pytest.mark.may_skip("machines without /dev/fuse")
def test_process_that_cannot_die_is_named_and_the_kill_stays_pending(staged: Staged, share: DeadShare) -> None:
    stage = staged(agent("attached"))
    stage.start()
    agentbox("spawn", stage.run_id, "-d", "--task", "stuck", "--", "stat", f"{share.point}/x", check=0)
    assert share.asked.wait(30)
    found = stage.kill(check=1)
    assert (found["proof"], found["empty_at"]) == ("alive", None)
    (survivor,) = found["survivors"]
    assert survivor["state"].startswith("D (")
    assert survivor["comm"] == "stat"
    assert len(found["processes"]) == 4
    assert stage.registered_alive() == []
    seen = stage.inspect()
    assert (seen["state"], seen["proof"], seen["processes"]) == ("kill_pending", "alive", 1)
    (shown,) = json.loads(agentbox("ps", "--json", check=0).stdout)
    assert (shown["run_id"], shown["state"]) == (stage.run_id, "kill_pending")
    share.answer()
    wait_for(lambda: stage.inspect()["proof"] == "empty")
    assert stage.kill()["proof"] == "empty"
    stage.assert_stopped(None)
