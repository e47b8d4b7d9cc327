"""An engine that is stopped, restarted, or takes connections and never answers: unknown is not gone."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.boxes.base import Unavailable
from sandbox.boxes.docker import DockerBackend
from sandbox.kernel.spawn import apart
from tests.docker.conftest import Lab
from tests.support import wait_for

pytestmark = pytest.mark.bed("dockerd")

BEAT = ("sh", "-c", "while :; do echo x >> beat; sleep .05; done")


def soon() -> float:
    return time.monotonic() + 20


def beating(lab: Lab, run_id: str) -> Path:
    lab.running(run_id, *BEAT)
    beat = lab.work / "beat"
    wait_for(beat.exists)
    return beat


def still(path: Path) -> bool:
    before = path.stat().st_size
    time.sleep(0.4)
    return before == path.stat().st_size


@pytest.fixture
def mute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An engine that accepts and never answers; DOCKER_HOST points to it."""
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(64)
        yield f"unix://{path}"


def test_a_mute_engine_costs_a_bounded_time_and_is_unknown(
    lab: Lab, mute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = lab.new_id()
    beat = beating(lab, run_id)
    parent = lab.parent(run_id)
    monkeypatch.setenv("DOCKER_HOST", mute)
    backend = lab.backend()
    assert backend.populated(parent) == "alive", "the kernel tells without the engine"
    assert backend.kill(parent, soon()) == "unknown", "dead by its cgroup, and not proven for the engine's part"
    assert still(beat)
    with pytest.raises(Unavailable, match="has not answered"):
        backend.parents(run_id)
    with pytest.raises(Unavailable, match="has not answered"):
        backend.list()
    assert backend.populated(parent) == "unknown"
    monkeypatch.setenv("DOCKER_HOST", lab.dockerd.host)
    assert lab.backend().kill(parent, soon()) == "empty"


def test_no_engine_is_one_line_and_125(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    done = lab.run("true")
    assert done.returncode == 125
    assert done.stderr.decode().count("\n") == 1
    assert "no docker engine at unix:///nowhere/docker.sock" in done.stderr.decode()


def test_a_mute_engine_at_the_start_is_one_line_and_125(lab: Lab, mute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", mute)
    done = lab.run("true")
    assert done.returncode == 125
    assert done.stderr.decode().count("\n") == 1
    assert "has not answered" in done.stderr.decode()


def test_a_hung_engine_while_the_run_is_killed(lab: Lab) -> None:
    """SIGSTOP, as a daemon that is stuck: the cgroup's kill needs none of it; the rest is proven once it answers."""
    run_id = lab.new_id()
    beat = beating(lab, run_id)
    parent = lab.parent(run_id)
    pid = lab.dockerd.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert lab.backend().kill(parent, time.monotonic() + 3) == "unknown"
        assert still(beat)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert lab.backend().kill(parent, soon()) == "empty"
    assert lab.started[0].wait(30) == 137


def test_the_engine_is_stopped_with_its_containers(lab: Lab) -> None:
    run_id = lab.new_id()
    beat = beating(lab, run_id)
    parent = lab.parent(run_id)
    lab.dockerd.stop()
    assert still(beat)
    assert lab.backend().populated(parent) == "unknown"
    with pytest.raises(Unavailable, match="no docker engine"):
        DockerBackend(str(lab.home)).parents(run_id)
    lab.dockerd.start()
    assert lab.started[0].wait(60) not in (0, None), "its end is learnt from the engine that came back"
    assert lab.backend().parents(run_id) == []


def test_the_engine_dies_and_its_containers_live_on(lab: Lab) -> None:
    run_id = lab.new_id()
    beat = beating(lab, run_id)
    parent = lab.parent(run_id)
    lab.dockerd.kill()
    assert not still(beat)
    assert lab.backend().populated(parent) == "alive"
    assert lab.backend().kill(parent, soon()) == "unknown"
    assert still(beat)
    lab.dockerd.start()
    assert lab.backend().kill(parent, soon()) == "empty"
    assert lab.started[0].wait(60) == 137


def test_no_permission_on_the_socket(lab: Lab) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    import docker.errors
    import requests

    assert docker.errors and requests, "loaded before: the other user may not be able to read them"
    lab.dockerd.socket.parent.chmod(0o711)
    spec = lab.spec(lab.new_id())

    def as_nobody() -> str:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        lab.backend().create(spec)
        return ""

    with pytest.raises(RuntimeError, match=r"^no permission on unix://\S+; join the group"):
        apart(as_nobody, 30)
