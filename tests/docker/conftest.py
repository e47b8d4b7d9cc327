"""Runs in containers of the session's engine, started by the real launcher; the containers go after each test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.base import Box, BoxSpec
from sandbox.boxes.docker import DockerBackend
from sandbox.boxes.docker_engine import HOME, RUN
from tests.beds.base import TREE
from tests.beds.dockerd import IMAGE, Dockerd
from tests.support import wait_for

DRIVER = TREE / "tests" / "docker" / "driver.py"


@dataclass
class Lab:
    """A home, a working folder and an engine. Options are those of tests/docker/driver.py."""

    home: Path
    work: Path
    dockerd: Dockerd
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def new_id(self) -> str:
        return f"t{uuid.uuid4().hex[:10]}"

    def argv(self, run_id: str, *command: str, **options: Any) -> list[str]:
        text = json.dumps({"image": IMAGE, **options})
        return [sys.executable, str(DRIVER), run_id, text, "--", *command]

    def run(
        self, *command: str, stdin: bytes = b"", run_id: str = "", **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Launch in the foreground and wait for the end."""
        argv = self.argv(run_id or self.new_id(), *command, **options)
        return subprocess.run(argv, input=stdin, capture_output=True, cwd=self.work, timeout=120, check=False)

    def start(
        self, run_id: str, *command: str, stdio: Any = subprocess.DEVNULL, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Launch in the foreground and do not wait; ended with the test."""
        argv = self.argv(run_id, *command, **options)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdio, stderr=subprocess.PIPE, cwd=self.work)
        self.started.append(process)
        return process

    def running(self, run_id: str, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """`start`, and wait until the container runs."""
        process = self.start(run_id, *command, **options)
        wait_for(lambda: self.state(run_id) == "running" or process.poll() is not None, 60, "the container runs")
        return process

    def containers(self, run_id: str | None = None) -> list[dict[str, Any]]:
        label = f"{HOME}={self.home}" if run_id is None else f"{RUN}={run_id}"
        return self.dockerd.engine.containers(label)

    def state(self, run_id: str) -> str | None:
        """The engine's word for the run's only container, or None without one."""
        found = self.containers(run_id)
        return str(found[0]["State"]) if found else None

    def backend(self) -> DockerBackend:
        return DockerBackend(str(self.home))

    def parent(self, run_id: str) -> Box:
        (box,) = self.backend().parents(run_id)
        return box

    def spec(self, run_id: str, task_id: str = "main", **options: Any) -> BoxSpec:
        run_dir = self.home / "runs" / run_id
        for name in ("ctl", "beat", "steer"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        return BoxSpec(str(self.home), run_id, task_id, str(run_dir), container={"image": IMAGE, **options})


@pytest.fixture
def lab(dockerd: Dockerd, home: Path, tmp_path: Path) -> Iterator[Lab]:
    work = tmp_path / "work"
    work.mkdir()
    lab = Lab(home, work, dockerd)
    yield lab
    dockerd.start()
    # Containers first: the process that stands for one holds the launcher's stderr as long as it lives.
    for container in lab.containers():
        dockerd.engine.remove(container["Id"])
    for process in lab.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    _remove_cgroups(lab)


def _remove_cgroups(lab: Lab) -> None:
    """The empty directories of runs whose launcher was killed by the test."""
    from sandbox.boxes.cgroup import CgroupBackend

    backend = CgroupBackend(str(lab.home))
    for box in [box for box in backend.list() if box.task_id is None]:
        if os.path.isdir(box.cgroup or ""):
            backend.destroy(box)


@pytest.fixture
def api(dockerd: Dockerd) -> Iterator[Any]:
    """A docker-py client of the session's engine."""
    import docker

    client = docker.APIClient(base_url=dockerd.host, version="auto", timeout=60)
    yield client
    client.close()


@pytest.fixture
def stranger(api: Any) -> Iterator[str]:
    """A running container that is none of ours, though its name and image look like it; must live on."""
    name = f"agentbox-stranger-main-{uuid.uuid4().hex[:6]}"
    host = api.create_host_config(init=True)
    made = api.create_container(IMAGE, ["sleep", "7200"], name=name, host_config=host, labels={f"{RUN}.x": "stranger"})
    api.start(made["Id"])
    yield str(made["Id"])
    alive = api.inspect_container(made["Id"])["State"]["Running"]
    api.remove_container(made["Id"], force=True)
    assert alive, "the stranger was killed, too"
