"""An engine that is reached by its API alone: nothing of this host's kernel is asked about its containers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.docker_engine import CGROUP, Engine, _same_kernel
from tests.beds.dockerd import IMAGE
from tests.docker.conftest import Lab
from tests.docker.relay import Relay
from tests.support import agentbox, wait_for

pytestmark = pytest.mark.bed("dockerd")


@pytest.fixture
def remote(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The lab, with its engine behind a TCP address."""
    relay = Relay(str(lab.dockerd.socket))
    monkeypatch.setenv("DOCKER_HOST", relay.host)
    yield lab
    relay.close()


def test_a_remote_run_is_the_same_for_who_uses_it(remote: Lab) -> None:
    done = remote.run("sh", "-c", "cat; echo err >&2; exit 3", stdin=b"\0\xff" * 100_000)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"\0\xff" * 100_000, b"err\n")


def test_a_remote_run_is_stopped_by_the_api_alone(remote: Lab, api: Any, stranger: str) -> None:
    run_id = remote.new_id()
    words = ["-d", "--run-id", run_id, "--image", IMAGE, "--", "sh", "-c", "setsid sleep 900 & sleep 900"]
    agentbox("run", *words, home=remote.home, cwd=remote.work, check=0)
    (listed,) = remote.containers(run_id)
    assert CGROUP not in listed["Labels"]
    assert api.inspect_container(listed["Id"])["HostConfig"]["CgroupParent"] == ""
    started = [line for line in _manifest(remote, run_id) if line["event"] == "task.started"]
    assert started[0]["box"]["cgroup"] is None
    (row,) = json.loads(agentbox("ps", "--json", home=remote.home, check=0).stdout)
    assert (row["state"], row["backend"]) == ("running", "docker")

    backend, parent = remote.backend(), remote.parent(run_id)
    members = backend.members(parent, 5.0) or []
    assert len([member for member in members if member.argv == ["sleep", "900"]]) == 2
    assert all((member.cgroup or "").startswith("container ") for member in members), "told by the engine"
    assert backend.freeze(parent, time.monotonic() + 20)
    assert remote.state(run_id) == "paused"
    backend.thaw(parent)
    assert remote.state(run_id) == "running"
    assert backend.freeze(parent, time.monotonic() + 20)

    agentbox("kill", run_id, home=remote.home, check=0)
    assert agentbox("wait", run_id, home=remote.home).returncode == 137
    assert remote.state(run_id) == "exited"
    assert agentbox("ps", "-q", home=remote.home, check=0).stdout == ""


def _manifest(lab: Lab, run_id: str) -> list[dict[str, Any]]:
    text = (Path(lab.home) / "runs" / run_id / "manifest.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_an_engine_is_local_only_on_this_very_kernel(remote: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Engine().facts().local, "reached by TCP"
    monkeypatch.setenv("DOCKER_HOST", remote.dockerd.host)
    engine = Engine()
    assert engine.facts().local
    info = engine.bounded(5, lambda: engine.api.info())
    assert _same_kernel(info)
    for key, other in (("Name", "docker-desktop"), ("KernelVersion", "6.6.0-linuxkit"), ("CgroupVersion", "1")):
        assert not _same_kernel({**info, key: other})


@pytest.mark.parametrize("host", ["tcp://127.0.0.1:1", "ssh://nobody@127.0.0.1:1", "unix://relative", "nonsense://x"])
def test_an_address_without_an_engine_is_one_line(lab: Lab, host: str) -> None:
    done = agentbox("run", "--image", IMAGE, "--", "true", home=lab.home, cwd=lab.work, env={"DOCKER_HOST": host})
    assert done.returncode == 125
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("agentbox: ")


def test_a_limit_for_a_whole_run_is_not_claimed(remote: Lab) -> None:
    done = agentbox("run", "--image", IMAGE, "--pids", "50", "--", "true", home=remote.home, cwd=remote.work)
    assert done.returncode == 125
    assert "--pids" in done.stderr
    assert "best-effort" in done.stderr
    wait_for(lambda: remote.containers() == [])
