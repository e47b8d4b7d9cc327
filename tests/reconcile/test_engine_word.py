"""The engine's word and the kernel's on whether a container lives: two facts, and where they disagree, a finding."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from sandbox.kernel.procfs import all_pids
from sandbox.kernel.scan import cmdline
from tests.beds.dockerd import IMAGE, Dockerd
from tests.cli.runs import start
from tests.reconcile.looking import answered, box_of, box_pids, end, end_launcher, in_state, kinds
from tests.support import agentbox, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("runs")


def shim_of(container: str) -> int:
    """The process that waits for a container's end in the engine's place."""
    named = {pid: words for pid in all_pids() if container.encode() in (words := cmdline(pid))}
    (shim,) = [pid for pid, words in named.items() if b"containerd-shim" in words.split(b"\0")[0]]
    return shim


@pytest.mark.bed("dockerd")
def test_engine_says_running_and_its_cgroup_is_empty(engine: Dockerd) -> None:
    """The container's shim hangs, so that nobody tells the engine of its end; beside one on which both agree."""
    live = start("sleep", "900", options=("--image", IMAGE))
    run = start("sleep", "900", options=("--image", IMAGE))
    pids = set(box_pids(run))
    (container,) = engine.engine.containers(f"agentbox.run={run}")
    shim = shim_of(container["Id"])
    end_launcher(run)
    os.kill(shim, signal.SIGSTOP)
    try:
        in_state(shim, "T")
        for pid in pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, pids)))
        (found,) = [found for found in answered() if found["kind"] == "engine_disagrees"]
        assert (found["run_id"], found["task_id"]) == (run, "main")
        told = found["evidence"]
        assert (told["engine_status"], told["cgroup_populated"], told["pids"]) == ("running", False, [])
    finally:
        os.kill(shim, signal.SIGCONT)
    wait_for(lambda: "engine_disagrees" not in kinds(), 30)
    assert box_pids(live)


@pytest.mark.bed("dockerd")
def test_engine_says_exited_and_its_cgroup_is_not_empty(engine: Dockerd) -> None:
    run = start("sleep", "900", options=("--image", IMAGE, "--on-exit", "leave"))
    assert "engine_disagrees" not in kinds()
    stranger = subprocess.Popen(["sleep", "900"])
    try:
        (box_of(run) / "late").mkdir()
        (box_of(run) / "late" / "cgroup.procs").write_text(str(stranger.pid))
        (container,) = engine.engine.containers(f"agentbox.run={run}")
        engine.engine.ask("POST", f"/containers/{container['Id']}/kill")
        agentbox("wait", run)
        (found,) = [found for found in answered() if found["kind"] == "engine_disagrees"]
        told = found["evidence"]
        assert (told["engine_status"], told["cgroup_populated"], told["pids"]) == ("exited", True, [stranger.pid])
        assert found["command"] == f"agentbox kill {run} --task main"
        agentbox("kill", run, "--task", "main", check=0)
        assert "engine_disagrees" not in kinds()
    finally:
        end(stranger)
