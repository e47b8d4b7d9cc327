"""An engine under systemd: its systemd cgroup driver, overlay2, limits that hold, and runs of every backend at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.docker import DockerBackend
from tests.beds.dockerd import IMAGE, Engine
from tests.emergency.fleet import AGENT, PROCESSES, Fleet, watching
from tests.support import agentbox, wait_for

pytestmark = [pytest.mark.bed("vm"), pytest.mark.limit(600)]

CONFIG = {"storage-driver": "overlay2", "iptables": False, "ip6tables": False, "bridge": "none"}
SECURITY = "/sys/kernel/security"
SLICES = Path("/sys/fs/cgroup/agentbox.slice")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The machine's own docker.service."""
    file = Path("/etc/docker/daemon.json")
    before = file.read_text()
    file.write_text(json.dumps(CONFIG))
    # The kernel has AppArmor and the machine no parser for its profiles: without securityfs the engine sees neither.
    subprocess.run(["umount", SECURITY], check=True)
    subprocess.run(["systemctl", "start", "docker.service"], check=True)
    found = Engine(Path("/var/run/docker.sock"))
    found.import_busybox()
    yield found
    subprocess.run(["systemctl", "stop", "docker.socket", "docker.service", "containerd.service"], check=True)
    subprocess.run(["umount", "-q", "/run/docker/netns/default"], check=False, capture_output=True)
    subprocess.run(["mount", "-t", "securityfs", "securityfs", SECURITY], check=True)
    file.write_text(before)


@pytest.fixture
def work(engine: Engine, home: Path, tmp_path: Path) -> Iterator[Path]:
    """A working folder; the test's containers go after it."""
    folder = tmp_path / "work"
    folder.mkdir()
    yield folder
    agentbox("kill", "--all", timeout=300)
    for run_id in agentbox("ps", "-a", "-q", timeout=300).stdout.split():
        agentbox("wait", run_id, timeout=300)
    for container in engine.containers(f"agentbox.home={home}"):
        engine.remove(container["Id"])


def run(work: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return agentbox("run", "--image", IMAGE, *words, cwd=work, timeout=300, **more)


def manifest(run_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in agentbox("manifest", run_id, check=0).stdout.splitlines()]


def test_the_engine_is_the_one_that_is_meant(engine: Engine, home: Path) -> None:
    info = engine.ask("GET", "/info")
    assert (info["CgroupDriver"], info["CgroupVersion"], info["Driver"]) == ("systemd", "2", "overlay2")
    assert DockerBackend(str(home)).probe().endswith("local, systemd driver")
    assert engine.containers("agentbox.run") == []
    assert not list(SLICES.glob("agentbox-probe*"))


def test_runs_of_all_backends_are_listed_and_killed_together(work: Path) -> None:
    kinds = {"plain": ["--backend", "cgroup"], "scope-1": ["--backend", "systemd"], "con-tainer": ["--image", IMAGE]}
    for run_id, kind in kinds.items():
        agentbox("run", "-d", "--run-id", run_id, *kind, "--", "sleep", "900", check=0, cwd=work, timeout=300)
    run_slice = SLICES / "agentbox-con\\x2dtainer.slice"
    assert "populated 1" in (run_slice / "agentbox-con\\x2dtainer-main.slice" / "cgroup.events").read_text()
    rows = json.loads(agentbox("ps", "--json", check=0, timeout=300).stdout)
    assert {row["run_id"]: row["state"] for row in rows} == dict.fromkeys(kinds, "running")
    assert {row["backend"] for row in rows} == {"cgroup", "systemd", "docker"}
    assert agentbox("reconcile", timeout=300).returncode == 0
    done = agentbox("kill", "--all", "--json", check=0, timeout=300)
    assert {one["run_id"]: one["proof"] for one in json.loads(done.stdout)} == dict.fromkeys(kinds, "empty")
    for run_id in kinds:
        assert agentbox("wait", run_id, timeout=300).returncode == 137
    wait_for(lambda: not list(SLICES.glob("agentbox-con*")), 60, "the run's slice is gone")
    assert agentbox("reconcile", timeout=300).returncode == 0


@pytest.mark.parametrize(
    "count", [3, pytest.param(16, marks=pytest.mark.full("each start takes an emulated machine seconds"))]
)
def test_emergency_stop_of_all_backends(work: Path, home: Path, count: int) -> None:
    """A touched file under a watch: every run of five processes, one detached, is empty, and has its receipt.

    An emulated machine may need longer for a container than a stop has; then the next one gives the proof.
    """
    fleet, kinds = Fleet(home), (["--backend", "cgroup"], ["--backend", "systemd"], ["--image", IMAGE])
    for number in range(count):
        run_id, kind = f"fleet-{number}", kinds[number % len(kinds)]
        agentbox("run", "-d", "--run-id", run_id, *kind, "--", "sh", "-c", AGENT, check=0, cwd=work, timeout=300)
        fleet.seen(run_id, PROCESSES + ("--image" in kind))
    with watching(home, work):
        (home / "EMERGENCY_STOP").touch()
        fleet.dead()
        wait_for(lambda: all(map(fleet.receipts, fleet.parents)), 60)
    agentbox("estop", check=0, timeout=300)
    for run_id, pids in fleet.pids.items():
        first, last = fleet.receipts(run_id)[0], fleet.receipts(run_id)[-1]
        assert last["proof"] == "empty" and last["empty_at"], last
        assert sorted(one["pid"] for one in first["processes"]) == sorted(pids)
    fleet.gone()
    agentbox("estop", "--lift", check=0, timeout=300)


def test_one_task_is_found_without_the_engine_and_leaves_the_other(work: Path, engine: Engine) -> None:
    run(work, "-d", "--run-id", "two", "--", "sleep", "900", check=0)
    words = ["spawn", "two", "-d", "--task", "b-1", "--image", IMAGE, "--", "sleep", "901"]
    agentbox(*words, check=0, cwd=work, timeout=300)
    mute = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    assert agentbox("kill", "two", "--task", "b-1", env=mute, timeout=300).returncode == 1, "the engine is not asked"
    states = {c["Labels"]["agentbox.task"]: c for c in engine.containers("agentbox.run=two")}
    wait_for(lambda: engine.ask("GET", f"/containers/{states['b-1']['Id']}/json")["State"]["Status"] == "exited", 60)
    assert engine.ask("GET", f"/containers/{states['main']['Id']}/json")["State"]["Running"]
    agentbox("kill", "two", check=0, timeout=300)
    assert agentbox("wait", "two", timeout=300).returncode == 137
    wait_for(lambda: not list(SLICES.glob("agentbox-two*")), 60)


def test_a_run_out_of_memory_is_named(work: Path) -> None:
    done = run(work, "--run-id", "oom", "--memory", "32m", "--", "tail", "/dev/zero")
    assert done.returncode == 137, done.stderr
    assert "for lack of memory" in done.stderr
    (ended,) = [one for one in manifest("oom") if one["event"] == "run.ended"]
    assert ended["outcome"] == "oom"


def test_the_limit_of_processes_holds(work: Path) -> None:
    script = "for i in $(seq 40); do sleep 900 & done; wait"
    done = run(work, "--pids", "20", "--timeout", "20s", "--", "sh", "-c", script)
    assert "can't fork" in done.stderr


def test_the_limit_of_processors_is_the_kernels(work: Path) -> None:
    run(work, "-d", "--run-id", "cpu", "--cpus", "0.5", "--", "sleep", "900", check=0)
    (quota,) = SLICES.glob("agentbox-cpu.slice/cpu.max")
    assert quota.read_text().split() == ["50000", "100000"], "of the run as a whole"
    inner = next(SLICES.glob("agentbox-cpu.slice/*/docker-*.scope/cpu.max"))
    assert inner.read_text().split() == ["50000", "100000"]
    agentbox("kill", "cpu", check=0, timeout=300)
    agentbox("wait", "cpu", timeout=300)
