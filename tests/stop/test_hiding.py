"""An agent that takes rights away from the cgroups above it hides nothing from a stop."""

from __future__ import annotations

import pytest

from tests.stop.conftest import Staged
from tests.stop.stage import agent
from tests.support import agentbox, wait_for


@pytest.mark.bed("host", "nspawn", "nspawn-user")
def test_leftovers_behind_locked_directories_are_ended_by_the_launcher(staged: Staged) -> None:
    stage = staged(["sh", "-c", '"$@" & while ! [ -e go-on ]; do sleep 0.01; done', "sh", *agent("box_locked")])
    stage.start()
    (stage.folder / "go-on").touch()
    assert agentbox("wait", stage.run_id).returncode == 0
    (task,) = stage.inspect()["task_list"]
    assert len(task["leftovers"]) == 2
    wait_for(lambda: stage.registered_alive() == [])
    stage.twin_beats_on()
