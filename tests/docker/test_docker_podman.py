"""Podman's API socket in the place of an engine's: the same code, the same answers."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beds import space
from tests.beds.base import missing_tools, scratch, wait_until
from tests.beds.dockerd import IMAGE, Engine
from tests.support import agentbox

pytestmark = [pytest.mark.full("a second engine"), pytest.mark.may_skip("where Podman is not installed")]

# No controllers and no CAP_SYS_RESOURCE are needed then, so that it runs in a container of a test machine, too.
CONFIG = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\npids_limit = 0\n'
INIT = ("/usr/libexec/podman/catatonit", "/usr/bin/catatonit")


@pytest.fixture(scope="module")
def podman() -> Iterator[Engine]:
    """A private service with IMAGE; it and all that it has made end with the module."""
    if why := missing_tools(("podman", "runc", "busybox", "unshare", "setpriv"), "podman runc catatonit"):
        pytest.skip(why)
    if not any(Path(path).exists() for path in INIT):
        pytest.skip("no catatonit, which is the init that Podman takes")
    folder = scratch("podman")
    (folder / "containers.conf").write_text(CONFIG)
    places = [f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp", "--storage-driver=vfs"]
    how = ["--cgroup-manager=cgroupfs", "--runtime=runc", "--events-backend=file", "--log-level=error"]
    argv = ["env", f"CONTAINERS_CONF={folder}/containers.conf", f"TMPDIR={folder}", "podman", *places, *how]
    engine = Engine(folder / "podman.sock")
    with open(folder / "log", "wb") as log:
        service = space.start_private(
            [*argv, "system", "service", "--time=0", f"unix://{engine.path}"], folder.name, log
        )
    try:
        wait_until(engine.path.exists, 60, "podman listens")
        engine.import_busybox()
        yield engine
        with contextlib.suppress(OSError, RuntimeError):
            for container in engine.containers():
                engine.remove(container["Id"])
    finally:
        service.terminate()
        service.wait(30)
        mount = space.cgroup2_mount()
        for name in (folder.name, "libpod_parent"):
            if mount is not None and (mount / name).exists():
                space.end_tree(mount / name)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def work(podman: Engine, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{podman.path}")
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def test_stdio_and_status(work: Path) -> None:
    done = agentbox("run", "--image", IMAGE, "--", "md5sum", cwd=work, stdin="foo\n")
    assert (done.returncode, done.stdout) == (0, "d3b07384d113edec49eaa6238ad5ff00  -\n")
    assert agentbox("run", "--image", IMAGE, "--", "sh", "-c", "exit 3", cwd=work).returncode == 3


def test_a_run_is_listed_and_stopped_whole(work: Path, podman: Engine, bystander: subprocess.Popen[bytes]) -> None:
    words = ["--run-id", "pod", "--image", IMAGE, "--", "sh", "-c", "setsid sleep 900 & sleep 900"]
    agentbox("run", "-d", *words, cwd=work, check=0)
    (row,) = json.loads(agentbox("ps", "--json", check=0).stdout)
    assert (row["state"], row["backend"]) == ("running", "docker")
    (receipt,) = json.loads(agentbox("kill", "--json", "pod", check=0).stdout)
    assert receipt["proof"] == "empty"
    assert [one["argv"] for one in receipt["processes"]].count(["sleep", "900"]) == 2
    assert agentbox("wait", "pod").returncode == 137
    assert [one["State"] for one in podman.containers("agentbox.run=pod")] == ["exited"]
