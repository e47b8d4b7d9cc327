"""The beds themselves: each is the machine that it says it is, and a failure inside is a failure here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leaks
from tests.beds import space
from tests.beds.base import TREE
from tests.beds.dockerd import IMAGE, Dockerd
from tests.beds.vm import Vm
from tests.support import agentbox, is_alive, wait_for


def own_cgroup() -> str:
    """The v2 line of /proc/self/cgroup, cgroups(7)."""
    return Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()


def output(*argv: str) -> str:
    """What a command that must work prints."""
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.bed("nspawn", "vm")
def test_systemd_is_pid_1_and_we_are_root_in_a_unit(bed: str) -> None:
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    assert os.geteuid() == 0
    assert own_cgroup() == "/system.slice/testbed.service"
    assert space.cgroup2_mount() == Path("/sys/fs/cgroup")
    assert ".scope" in output("systemd-run", "--scope", "--quiet", "--collect", "cat", "/proc/self/cgroup")


@pytest.mark.bed("nspawn-user")
def test_plain_user_has_a_manager_of_their_own() -> None:
    assert os.geteuid() != 0
    scope = output("systemd-run", "--user", "--scope", "--quiet", "--collect", "cat", "/proc/self/cgroup")
    assert f"user@{os.geteuid()}.service" in scope
    assert os.access(os.environ["XDG_RUNTIME_DIR"], os.W_OK)


@pytest.mark.bed("nspawn", "nspawn-user")
def test_what_a_bed_has(bed: str) -> None:
    path = os.environ["PATH"] + ":/usr/sbin"
    for tool in ("agentbox", "git", "strace", "tmux", "jq", "crontab", "at", "bwrap", "dockerd"):
        assert shutil.which(tool, path=path), tool
    without_help = [sys.executable, "-c", "import sandbox, pytest, psutil, pystemd, docker"]
    subprocess.run(without_help, env={}, cwd="/", check=True)


@pytest.mark.bed("vm")
def test_vm_has_all_controllers_and_its_own_kernel() -> None:
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    assert {"memory", "pids", "cpu", "io"} <= set(controllers)
    assert " - cgroup " not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.bed("vm")
def test_vm_runs_docker_with_the_systemd_driver() -> None:
    subprocess.run(["systemctl", "start", "docker.service"], check=True)
    try:
        assert output("docker", "info", "-f", "{{.CgroupDriver}}").strip() == "systemd"
    finally:
        subprocess.run(["systemctl", "stop", "docker.service", "docker.socket"], check=True)


@pytest.mark.bed("dockerd")
def test_container_runs_and_its_cgroup_is_seen_from_outside(dockerd: Dockerd) -> None:
    name = output("docker", "run", "-d", "--rm", IMAGE, "sleep", "900").strip()
    (pid,) = space.members(dockerd.mount / "docker" / name)
    assert is_alive(pid)
    output("docker", "kill", name)
    wait_for(lambda: not is_alive(pid))
    wait_for(lambda: not dockerd.engine.containers())


@pytest.mark.bed("dockerd")
def test_engine_that_was_killed_comes_back(dockerd: Dockerd) -> None:
    before = dockerd.pid
    dockerd.kill()
    assert dockerd.pid is None
    dockerd.start()
    assert dockerd.pid not in (None, before)
    assert dockerd.engine.containers() == []


@pytest.mark.bed("dockerd")
def test_engine_leaves_nothing() -> None:
    daemon = Dockerd()
    run = ("docker", "--host", daemon.host, "run", "-d", "--init", IMAGE, "sleep", "900")
    first = output(*run).strip()
    daemon.kill()
    daemon.start()
    second = output(*run).strip()
    daemon.kill()
    daemon.remove()
    assert not [name for name in (first, second) if (daemon.mount / "docker" / name).exists()]
    assert not [cgroup for cgroup in daemon.cgroups if cgroup.exists()]
    assert str(daemon.folder).encode() not in b"".join(map(command_line, Path("/proc").glob("[0-9]*")))
    assert str(daemon.folder) not in Path("/proc/self/mountinfo").read_text()
    assert not daemon.folder.exists()


def command_line(process: Path) -> bytes:
    """The argv of a /proc/PID, b"" if it is gone."""
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.full("boots two more machines")
def test_disk_of_a_vm_lasts_over_a_power_cut() -> None:
    with Vm() as vm:
        first = vm.boot("echo kept > /var/kept; sync; echo READY; sleep 900\n", cut_on="READY")
        assert first.cut
        assert vm.boot("cat /var/kept\n").text == "kept\n"


def faulty(tmp_path: Path, *args: str, ci: str) -> dict[str, str]:
    """Run tests/beds/faulty.py as a session of its own; its summary as {"error test_name": line}."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--color=no"]
    argv += [f"--basetemp={tmp_path}/inner", *args, "tests/beds/faulty.py"]
    env = {**os.environ, "CI": ci, "COLUMNS": "300"}
    done = subprocess.run(argv, cwd=TREE, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    result = {"output": done.stdout}
    for line in done.stdout.partition("short test summary info")[2].splitlines():
        kind, _, rest = line.partition(" ")
        if "::" in rest:
            result[f"{kind.lower()} {rest.partition('::')[2].partition(' ')[0]}"] = rest
    return result


@pytest.mark.bed("dockerd")  # so that it needs root, as its own bed does
def test_what_goes_wrong_in_a_bed_is_seen_outside(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--only-bed=nspawn", ci="true")
    assert "passed test_passes_inside" in seen
    assert "failed test_fails_inside" in seen
    assert "wrong on purpose" in seen["output"]
    assert "sleep 901" in seen["error test_leaks_a_process_inside"]
    assert "error test_skips_inside" in seen or "failed test_skips_inside" in seen
    assert "passed test_skips_inside" not in seen
    assert "ended before its tests were through" in seen["output"]
    assert "error test_ends_its_bed" in seen
    assert "error test_comes_after_the_end" in seen


def test_leak_on_the_host_fails_the_test_and_is_ended(tmp_path: Path) -> None:
    seen = faulty(tmp_path, "--only-bed=host", ci="false")
    assert "sleep 902" in seen["error test_leaks_a_process"]
    assert "passed test_after_the_leak" in seen
    leak = f"sleep\0902.{os.getpid()}\0".encode()
    wait_for(lambda: leak not in map(command_line, Path("/proc").glob("[0-9]*")))


def test_bed_that_is_about_to_exec_is_no_leak(tmp_path: Path) -> None:
    """Between two tests a bed may be met without an argv, as every process is for a moment in execve(2)."""
    bed = subprocess.Popen([""], executable=sys.executable, stdin=subprocess.PIPE)
    session = leaks.Session(own_machine=False, folder=tmp_path)
    try:
        gate = leaks.Gate(session, lambda: None)
        assert bed.stdin is not None
        bed.stdin.write(b"import os; os.execv('/bin/sleep', ['sleep', '906'])")
        bed.stdin.close()
        wait_for(lambda: command_line(Path(f"/proc/{bed.pid}")).startswith(b"sleep"))
        assert gate.leaks() == ""
        assert bed.poll() is None
    finally:
        bed.kill()
        bed.wait()
        session.close()


def test_session_that_is_killed_leaves_nothing_alive(tmp_path: Path) -> None:
    """Neither processes that carry its mark nor runs of its homes, whose processes may have dropped it."""
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/inner"]
    bystander = subprocess.Popen(["sleep", f"904.{os.getpid()}"], start_new_session=True)
    try:
        done = subprocess.run([*argv, "tests/beds/killed.py"], cwd=TREE, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        home = tmp_path / "inner" / "test_kills_its_session0" / "home"
        assert (home / "runs" / "abandoned").is_dir()
        wait_for(lambda: _sleepers() == [bystander.pid], 60)
        assert agentbox("ps", "--json", home=home).stdout == "[]\n"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def _sleepers() -> list[int]:
    argvs = [f"sleep\0{seconds}.{os.getpid()}\0".encode() for seconds in (904, 905)]
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if command_line(path) in argvs]
