"""Starts and stops at the same time: whatever comes first, nothing runs in the end and nothing is left half made."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from typing import Any

import pytest

from sandbox.boxes.base import Command
from sandbox.errors import Refused
from sandbox.launch.run import prepare
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.start import start
from sandbox.manifest.home import Home
from sandbox.manifest.writer import Writer
from tests.beds.dockerd import IMAGE
from tests.docker.conftest import Lab
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

pytestmark = pytest.mark.bed("dockerd")


def starting(lab: Lab, *words: str) -> subprocess.Popen[bytes]:
    argv = agentbox_argv(*words, "--image", IMAGE, "--", "sleep", "900")
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        argv, stdin=null, stdout=null, stderr=subprocess.PIPE, cwd=lab.work, env=agentbox_env(lab.home)
    )
    lab.started.append(process)
    return process


def killed(lab: Lab, run_id: str) -> None:
    """Stop the run as soon as there is one."""
    wait_for(lambda: agentbox("kill", run_id, home=lab.home).returncode == 0, 60, "a proven stop")


def settled(lab: Lab, run_id: str) -> None:
    """Nothing of the run lives or could come to live."""
    wait_for(lambda: not {c["State"] for c in lab.containers(run_id)} - {"exited"}, 20, "all containers are down")
    assert agentbox("ps", "-q", home=lab.home, check=0).stdout == ""


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=[pytest.mark.full("100 rounds")])])
@pytest.mark.limit(1800)
def test_a_kill_at_any_moment_of_a_start(lab: Lab, stranger: str, rounds: int) -> None:
    chance = random.Random(rounds)
    for number in range(rounds):
        run_id = lab.new_id()
        process = starting(lab, "run", "--run-id", run_id)
        time.sleep(chance.uniform(0.05, 1.5))  # the moment is what is tested
        killed(lab, run_id)
        assert process.wait(60) in (75, 125, 137), f"round {number}: {process.stderr and process.stderr.read()!r}"
        settled(lab, run_id)


def test_tasks_that_start_while_the_run_is_killed(lab: Lab) -> None:
    run_id = lab.new_id()
    main = lab.running(run_id, "sleep", "900")
    spawned = [starting(lab, "spawn", run_id, "--task", f"worker-{number}") for number in range(3)]
    wait_for(lambda: len(lab.containers(run_id)) > 1, 60, "a worker is being made")
    killed(lab, run_id)
    assert main.wait(60) == 137
    assert [process.wait(60) for process in spawned if process.wait(60) not in (75, 125, 137)] == []
    settled(lab, run_id)
    late = agentbox("spawn", run_id, "--image", IMAGE, "--", "true", home=lab.home)
    assert late.returncode == 75
    settled(lab, run_id)


def test_the_client_is_killed_between_create_and_start(lab: Lab) -> None:
    run_id = lab.new_id()
    backend = lab.backend()
    box, _ = backend.create(lab.spec(run_id))
    child = backend.start(box, Command([b"sleep", b"900"], {}))
    os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: os.waitpid(child.pid, os.WNOHANG)[0] == child.pid)
    assert lab.state(run_id) == "created"
    (parent,) = lab.backend().parents(run_id)
    assert lab.backend().kill(parent, time.monotonic() + 20) == "empty"
    assert lab.containers(run_id) == []
    child.abandon()
    assert backend.destroy(box) and backend.destroy(parent)


class StoppedBeforeTheRecord(Writer):
    """Its run, or the task alone, is killed when the start has looked at the order for the last time."""

    words: tuple[str, ...] = ()
    killed: int | None = None

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        if event == "task.started":
            self.killed = agentbox("kill", self.run_id, *self.words).returncode
        return super().append(event, **fields)


@pytest.mark.parametrize("words", [(), ("--task", "main")], ids=["run", "task"])
def test_a_kill_meets_a_container_that_is_made_and_about_to_run(lab: Lab, words: tuple[str, ...]) -> None:
    """Its start has looked at the order for the last time: only the stop can keep it from running."""
    run_id, home = lab.new_id(), Home(str(lab.home))
    spec = LaunchSpec(run_id, "main", [b"sleep", b"900"], backend="docker", image=IMAGE, container={"image": IMAGE})
    run, writer, backend = prepare(spec, home)
    late = StoppedBeforeTheRecord(writer.path, run_id, writer.by)
    late.words = words
    with pytest.raises(Refused):
        start(spec, home, run, late, backend, [], ("nothing", lambda: None))
    assert late.killed == 0
    assert lab.containers(run_id) == []


def test_the_launcher_is_killed_while_it_starts(lab: Lab) -> None:
    """At a few moments: what stays may be a container that was made, or one that runs; a kill ends either."""
    for state in ("created", "running"):
        run_id = lab.new_id()
        process = starting(lab, "run", "--run-id", run_id)
        wait_for(lambda wanted=state, run=run_id: lab.state(run) in (wanted, "running"), 60)
        process.kill()
        process.wait(10)
        killed(lab, run_id)
        settled(lab, run_id)
        assert "created" not in [c["State"] for c in lab.containers(run_id)]
