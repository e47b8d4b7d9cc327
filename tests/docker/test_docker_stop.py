"""Stopping containers: whatever state they are in, all of them, for good, and no other."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.base import Command
from sandbox.boxes.docker import DockerBackend
from sandbox.boxes.docker_engine import HOME, HOST, RUN, TASK
from sandbox.errors import AgentboxError
from sandbox.kernel.cgroup import Cgroup
from tests.beds.dockerd import IMAGE
from tests.docker.conftest import Lab
from tests.support import is_alive, wait_for

pytestmark = pytest.mark.bed("dockerd")

BEATS = (
    "(while :; do echo x >> beat1; sleep .05; done) & "
    "setsid sh -c 'while :; do echo x >> beat2; sleep .05; done' & wait"
)


def soon() -> float:
    return time.monotonic() + 20


def beating(lab: Lab, run_id: str, **options: Any) -> list[Path]:
    """A run with two heartbeats, one of them detached with setsid; both have begun."""
    lab.running(run_id, "sh", "-c", BEATS, **options)
    beats = [lab.work / "beat1", lab.work / "beat2"]
    wait_for(lambda: all(path.exists() for path in beats), 20, "the heartbeats")
    return beats


def still(paths: list[Path]) -> bool:
    """No heartbeat in the time of several."""
    before = [path.stat().st_size for path in paths]
    time.sleep(0.4)
    return before == [path.stat().st_size for path in paths]


def test_kill_ends_all_and_keeps_the_container(lab: Lab, stranger: str) -> None:
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert still(beats)
    assert lab.started[0].wait(20) == 137
    assert lab.state(run_id) == "exited"
    assert lab.backend().parents(run_id) == []


def test_members_name_the_processes_of_this_host(lab: Lab) -> None:
    run_id = lab.new_id()
    lab.running(run_id, "sleep", "900")
    found = lab.backend().members(lab.parent(run_id), 2.0)
    assert found is not None
    assert ["sleep", "900"] in [member.argv for member in found]
    assert all(is_alive(member.pid) for member in found)


def test_freeze_holds_every_instruction_and_thaw_lets_go(lab: Lab) -> None:
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    backend, parent = lab.backend(), lab.parent(run_id)
    assert backend.freeze(parent, soon())
    assert still(beats)
    backend.thaw(parent)
    assert not still(beats)
    assert backend.freeze(parent, soon())
    assert backend.kill(parent, soon()) == "empty"
    assert not Cgroup(parent.cgroup or "").event("frozen"), "the next container in it would hang"


def test_terminate_reaches_each_process_once(lab: Lab) -> None:
    run_id = lab.new_id()
    child = "trap 'echo child >> got; exit 0' TERM; echo > up; while :; do sleep .05; done"
    # The main process waits for its child: its end would be the end of all that is in the container.
    main = 'sh -c "$0" & trap "echo main >> got; wait $!; exit 0" TERM; while :; do sleep .05; done'
    lab.running(run_id, "sh", "-c", main, child)
    wait_for((lab.work / "up").exists)
    assert lab.backend().signal(lab.parent(run_id), signal.SIGTERM) == []
    assert lab.started[0].wait(20) == 0
    assert sorted((lab.work / "got").read_text().split()) == ["child", "main"]


def test_a_paused_container(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    api.pause(lab.containers(run_id)[0]["Id"])
    assert lab.backend().populated(lab.parent(run_id)) == "alive"
    assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert still(beats)
    wait_for(lambda: lab.state(run_id) == "exited")


def test_a_process_from_docker_exec(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    lab.running(run_id, "sleep", "900")
    made = api.exec_create(
        lab.containers(run_id)[0]["Id"], ["sh", "-c", "while :; do echo x >> beat1; sleep .05; done"]
    )
    api.exec_start(made["Id"], detach=True)
    wait_for((lab.work / "beat1").exists)
    assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert still([lab.work / "beat1"])


def test_a_container_that_was_made_and_never_started_is_removed(lab: Lab) -> None:
    run_id = lab.new_id()
    backend = lab.backend()
    box, _ = backend.create(lab.spec(run_id))
    child = backend.start(box, Command([b"sleep", b"900"], {}))
    assert lab.state(run_id) == "created"
    assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert lab.containers(run_id) == []
    with pytest.raises(AgentboxError):
        child.release()
    child.abandon()
    assert backend.destroy(box)
    assert backend.destroy(backend.parents(run_id)[0])


def test_a_restart_policy_set_from_outside(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    name = lab.containers(run_id)[0]["Id"]
    api.update_container(name, restart_policy={"Name": "always"})
    backend = lab.backend()
    assert backend.kill(lab.parent(run_id), soon()) == "empty"
    assert still(beats)
    assert api.inspect_container(name)["HostConfig"]["RestartPolicy"]["Name"] == "no"
    assert ["always" in note for note in backend.notes] == [True]
    lab.dockerd.stop()
    lab.dockerd.start()
    assert lab.state(run_id) == "exited"
    assert still(beats)


def test_a_container_between_two_restarts(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    process = lab.running(run_id, "sh", "-c", "echo x >> beat1; sleep .2; exit 1")
    name = lab.containers(run_id)[0]["Id"]
    api.update_container(name, restart_policy={"Name": "always"})
    wait_for(lambda: api.inspect_container(name)["State"]["Restarting"], 30, "a restart")
    assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert still([lab.work / "beat1"])
    assert process.wait(60) != 0


def test_an_ended_container_that_would_come_back_is_still_found(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    assert lab.run("true", run_id=run_id).returncode == 0
    assert lab.backend().parents(run_id) == []
    api.update_container(lab.containers(run_id)[0]["Id"], restart_policy={"Name": "always"})
    assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert lab.backend().parents(run_id) == []


def test_two_kills_at_once(lab: Lab) -> None:
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    parent = lab.parent(run_id)
    proofs: list[str] = []
    threads = [threading.Thread(target=lambda: proofs.append(lab.backend().kill(parent, soon()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert proofs == ["empty", "empty"]
    assert still(beats)


def test_removal_in_progress(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    beating(lab, run_id)
    parent = lab.parent(run_id)
    name = lab.containers(run_id)[0]["Id"]
    remover = threading.Thread(target=lambda: api.remove_container(name, force=True))
    remover.start()
    assert lab.backend().kill(parent, soon()) == "empty"
    remover.join()
    assert lab.backend().kill(parent, soon()) == "empty", "once more, with nothing there"
    assert lab.started[0].wait(20) == 137


def test_a_prefix_and_a_pattern_of_the_id_are_other_runs(lab: Lab, stranger: str) -> None:
    base = lab.new_id()
    names = one, ten, dot, x = f"{base}-1", f"{base}-10", f"{base}.b", f"{base}xb"
    for run_id in names:
        lab.running(run_id, "sleep", "900")
    for run_id in (one, dot):
        assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
    assert [lab.state(run_id) for run_id in (one, ten, dot, x)] == ["exited", "running", "exited", "running"]
    assert lab.backend().parents(base) == []


def test_a_run_of_the_same_id_in_another_home_lives(lab: Lab, api: Any) -> None:
    run_id = lab.new_id()
    lab.running(run_id, "sleep", "900")
    host = api.create_host_config(init=True)
    labels = {RUN: run_id, TASK: "main", HOME: "/another/home", HOST: os.uname().nodename}
    other = api.create_container(IMAGE, ["sleep", "900"], host_config=host, labels=labels)["Id"]
    api.start(other)
    try:
        assert lab.backend().kill(lab.parent(run_id), soon()) == "empty"
        assert api.inspect_container(other)["State"]["Running"]
    finally:
        api.remove_container(other, force=True)


def test_the_launcher_is_killed_and_the_run_is_still_known(lab: Lab) -> None:
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    lab.started[0].kill()
    lab.started[0].wait()
    backend = lab.backend()
    assert [box.task_id for box in backend.list() if box.run_id == run_id] == [None, "main"]
    assert not still(beats)
    assert backend.kill(lab.parent(run_id), soon()) == "empty"
    assert still(beats)


def test_the_client_is_killed_and_the_container_ends(lab: Lab) -> None:
    """The launcher sees its child die, and ends what is left."""
    run_id = lab.new_id()
    beats = beating(lab, run_id)
    children = Path(f"/proc/{lab.started[0].pid}/task/{lab.started[0].pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    # The container may beat before the client has said that it started: then the start has failed.
    code = lab.started[0].wait(30)
    assert (code, lab.state(run_id)) in ((137, "exited"), (125, "not started"))
    assert still(beats)


def test_killing_one_task_leaves_the_others(lab: Lab) -> None:
    run_id = lab.new_id()
    lab.running(run_id, "sleep", "900")
    lab.start(run_id, "sleep", "901", spawn="worker")
    wait_for(lambda: [c["State"] for c in lab.containers(run_id)] == ["running"] * 2, 30)
    backend = DockerBackend(str(lab.home))
    worker = backend.find(run_id, "worker")
    assert worker is not None
    assert backend.kill(worker, soon()) == "empty"
    states = {c["Labels"][TASK]: c["State"] for c in lab.containers(run_id)}
    assert states == {"main": "running", "worker": "exited"}
    assert backend.kill(lab.parent(run_id), soon()) == "empty"
