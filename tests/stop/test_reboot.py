"""A power cut in the middle of a run: afterwards it is lost at reboot, and nothing of the new boot is signalled."""

from __future__ import annotations

import json

import pytest

from tests.beds.base import CI
from tests.beds.vm import Vm, VmBed

FIRST = """
agentbox run -d --run-id cut --backend systemd -- sh -c 'setsid sleep 901 & sleep 902 & wait'
agentbox run -d --run-id plain --backend cgroup -- sleep 903
sync
echo READY
sleep 900
"""
SECOND = """
setsid sleep 901 & setsid sleep 902 & setsid sleep 903 &
while [ "$(pgrep -c -x sleep)" -lt 3 ]; do sleep 0.1; done
agentbox ps -a --json
agentbox kill cut plain >/dev/null; echo "kill $?"
agentbox wait cut 2>/dev/null; echo "wait $?"
agentbox verify cut >/dev/null; echo "verify $?"
echo "alive $(pgrep -c -x sleep)"
"""


@pytest.mark.limit(900)
def test_a_run_is_lost_at_a_reboot_and_nothing_is_signalled() -> None:
    if why := VmBed("vm").missing():
        assert not CI, why
        pytest.skip(why)
    with Vm() as vm:
        assert vm.boot(FIRST, cut_on="READY").cut
        runs, *said = vm.boot(SECOND).text.strip().splitlines()[-5:]
    found = {run["run_id"]: run for run in json.loads(runs)}
    assert {name: (run["state"], run["why"]) for name, run in found.items()} == {
        "cut": ("lost", "lost at reboot"),
        "plain": ("lost", "lost at reboot"),
    }
    # The kill proves it empty; how the command itself ended nobody can tell.
    assert said == ["kill 0", "wait 137", "verify 0", "alive 3"]
