"""What `ps` and `inspect` say of a run: each state, brought about for real, and the form of what they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.control.orders import write_order
from tests.cli.mounts import Hung, own_mounts
from tests.cli.runs import gone, pids_of, records, row, run_dir, start, wait_pids
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("home", "bystander")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def control(run: str) -> str:
    return str(run_dir(run) / "ctl/control")


def launcher_of(run: str) -> int:
    return int(records(run, "task.intent")[0]["launcher"]["pid"])


def stop_while_starting(run: str) -> subprocess.Popen[bytes]:
    """Start a run in the foreground, its launcher held by SIGSTOP after its intent is recorded and before the start is.

    The launcher is let go on for a moment at a time, far shorter than what lies between the two.
    """
    launcher = subprocess.Popen(
        agentbox_argv("run", "--run-id", run, "--", "sleep", "900"), env=agentbox_env(), stderr=subprocess.DEVNULL
    )
    path = run_dir(run) / "manifest.jsonl"
    while b'"task.intent"' not in (path.read_bytes() if path.exists() else b""):
        launcher.send_signal(signal.SIGCONT)
        signal.sigtimedwait([], 0.0002)
        launcher.send_signal(signal.SIGSTOP)
        wait_for(lambda: _state(launcher.pid) in "TZ")
    assert b'"task.started"' not in path.read_bytes()
    return launcher


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class TestStates:
    def test_starting(self, run_id: str) -> None:
        launcher = stop_while_starting(run_id)
        assert row(run_id)["state"] == "starting"
        launcher.send_signal(signal.SIGCONT)
        wait_for(lambda: row(run_id)["state"] == "running")
        agentbox("kill", run_id, check=0)
        assert launcher.wait(30) == 137

    def test_starting_and_killed(self, run_id: str, bystander: subprocess.Popen[bytes]) -> None:
        launcher = stop_while_starting(run_id)
        agentbox("kill", run_id, check=0)
        assert launcher.wait(30) == 75
        assert not pids_of(run_id)
        assert row(run_id)["state"] in ("not started", "stopped")
        assert not records(run_id, "task.started")

    def test_running_and_paused(self) -> None:
        run = start("sleep", "900")
        assert (row(run)["state"], row(run)["order"]) == ("running", "RUN")
        write_order(control(run), "PAUSE", reason="a look")
        assert (row(run)["state"], row(run)["order"]) == ("paused", "PAUSE")
        write_order(control(run), "RUN")
        assert (row(run)["state"], row(run)["generation"]) == ("running", 3)
        agentbox("kill", run, check=0)

    def test_running_without_its_launcher(self) -> None:
        run = start("sleep", "900")
        os.kill(launcher_of(run), signal.SIGKILL)
        wait_for(lambda: not is_alive(launcher_of(run)))
        one = row(run)
        assert (one["state"], one["launcher_alive"], one["processes"]) == ("running", False, 1)
        assert f"{run} " in (text := agentbox("ps", check=0).stdout) and "launcher gone" in text
        agentbox("kill", run, check=0)
        assert (row(run)["state"], gone(run)) == ("stopped", True)

    def test_leftovers(self) -> None:
        run = start("sh", "-c", "sleep 901 & exit 3", options=("--on-exit", "leave"))
        wait_for(lambda: row(run)["state"] == "leftovers")
        assert row(run)["processes"] == 1
        agentbox("kill", run, check=0)
        assert row(run)["state"] in ("stopped", "exited")
        agentbox("wait", run, check=3)

    def test_stopping(self) -> None:
        """The order stands and its processes live."""
        run = start("sleep", "900")
        write_order(control(run), "STOP")
        assert row(run)["state"] == "stopping"
        agentbox("kill", run, check=0)
        assert row(run)["state"] == "stopped"

    def test_exited_and_stopped(self) -> None:
        run = start("sh", "-c", "exit 3")
        agentbox("wait", run, check=3)
        assert (row(run)["state"], row(run)["why"]) == ("exited", "code 3")
        run = start("sleep", "900")
        agentbox("kill", run, "--reason", "enough", check=0)
        assert (row(run)["state"], row(run)["why"]) == ("stopped", "enough")

    def test_lost(self) -> None:
        run = start("sleep", "900")
        (main,) = pids_of(run)
        for pid in (launcher_of(run), main):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: row(run)["state"] == "lost")
        assert "no exit was recorded" in row(run)["why"]
        agentbox("wait", run, check=125)
        agentbox("kill", run, check=0)
        assert gone(run)

    def test_lost_at_reboot(self, bystander: subprocess.Popen[bytes]) -> None:
        """Pids of another boot are somebody else's now: nothing is signalled."""
        run = start("sleep", "900")
        (main,) = pids_of(run)
        for pid in (launcher_of(run), main):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: row(run)["state"] == "lost")
        path = run_dir(run) / "manifest.jsonl"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        text = path.read_text().replace(boot, "0" * 8 + boot[8:])
        for pid in {main, launcher_of(run)}:
            text = text.replace(f'"pid":{pid},', f'"pid":{bystander.pid},')
        path.write_text(text)
        assert (row(run)["state"], row(run)["why"]) == ("lost", "lost at reboot")
        assert row(run)["launcher_alive"] is False
        agentbox("kill", run, check=0)
        assert is_alive(bystander.pid)

    def test_lost_after_the_stop_of_one_task(self) -> None:
        """A task's receipt does not tell of the run's end."""
        run = start("sleep", "900")
        agentbox("spawn", "-d", run, "--task", "t", "--", "sleep", "900", check=0)
        agentbox("kill", run, "--task", "t", check=0)
        for pid in (launcher_of(run), *pids_of(run)):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: row(run)["state"] == "lost")
        agentbox("kill", run, check=0)
        assert row(run)["state"] == "stopped"

    def test_not_started(self, tmp_path: Path, run_id: str) -> None:
        path = tmp_path / "x"
        path.write_text("#!/no/such/interpreter\n")
        path.chmod(0o755)
        agentbox("run", "--run-id", run_id, "--", str(path), check=127)
        assert row(run_id)["state"] == "not started"
        assert agentbox("ps", "-q", check=0).stdout == ""

    def test_unknown(self) -> None:
        """The record of a run that has no process is unreadable: nobody can tell what it was."""
        run = start("sh", "-c", "exit 3")
        agentbox("wait", run, check=3)
        path = run_dir(run) / "manifest.jsonl"
        path.unlink()
        path.mkdir()
        one = row(run)
        assert one["state"] == "unknown" and "record" in one["why"]
        assert run in agentbox("ps", "-q", check=0).stdout.split()

    @ROOT
    def test_unknown_without_cgroups(self) -> None:
        run = start("sleep", "900")
        argv = ["unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup && exec "$@"', "sh"]
        done = subprocess.run(
            [*argv, *agentbox_argv("ps", "--json")], env=agentbox_env(), capture_output=True, text=True, timeout=60
        )
        (one,) = json.loads(done.stdout)
        assert (one["state"], one["proof"]) == ("unknown", "unknown")
        assert row(run)["state"] == "running"
        agentbox("kill", run, check=0)

    def test_unreadable_order_counts_as_stop(self) -> None:
        run = start("sleep", "900")
        Path(control(run)).write_text("GO ON 7\n")
        one = row(run)
        assert (one["state"], one["order"]) == ("stopping", "STOP")
        assert "no trustworthy order" in one["why"]
        agentbox("kill", run, check=0)


@ROOT
class TestKillPending:
    """A process that SIGKILL does not end: it waits in the kernel for a file system that never answers."""

    @pytest.fixture
    def hung(self, tmp_path: Path) -> Iterator[Hung]:
        (tmp_path / "mnt").mkdir()
        with own_mounts():
            try:
                file_system = Hung(tmp_path / "mnt")
            except OSError as error:
                pytest.skip(f"no FUSE here: {error}")
            try:
                yield file_system
            finally:
                file_system.close()

    @pytest.mark.may_skip("a kernel without FUSE")
    def test_survivors_are_named_and_the_stop_is_not_said_to_be_done(
        self, hung: Hung, bystander: subprocess.Popen[bytes]
    ) -> None:
        run = start("sh", "-c", f"sleep 901 & cat {hung.path}/file & wait")
        pids = wait_pids(run, 3)
        wait_for(lambda: hung.requests)
        text = agentbox("kill", run, check=1).stdout
        (receipt,) = records(run, "stop.receipt")
        assert receipt["proof"] == "alive" and receipt["empty_at"] is None
        (survivor,) = receipt["survivors"]
        assert survivor["pid"] in pids and survivor["argv"] == ["cat", f"{hung.path}/file"]
        assert survivor["state"].startswith("D (")
        assert "survivors" in text and f"{survivor['pid']} D (" in text
        assert [pid for pid in pids if is_alive(pid)] == [survivor["pid"]]
        one = row(run)
        assert (one["state"], one["proof"], one["processes"]) == ("kill_pending", "alive", 1)
        hung.close()
        wait_for(lambda: not is_alive(survivor["pid"]))
        agentbox("kill", run, check=0)
        assert (row(run)["state"], gone(run)) == ("stopped", True)
        agentbox("wait", run, check=137)


def test_two_runs_that_begin_alike(run_id: str, bystander: subprocess.Popen[bytes]) -> None:
    one, ten = f"{run_id}-1", f"{run_id}-10"
    for run in (one, ten):
        start("sleep", "900", options=("--run-id", run))
    agentbox("kill", one, check=0)
    assert (row(one)["state"], row(ten)["state"]) == ("stopped", "running")
    (survivor,) = pids_of(ten)
    assert is_alive(survivor)
    agentbox("kill", ten, check=0)


def test_all_that_lives_is_ended_by_kill_all(bystander: subprocess.Popen[bytes]) -> None:
    runs = [start("sleep", "900") for _ in range(3)]
    receipts = json.loads(agentbox("kill", "--all", "--json", check=0).stdout)
    assert sorted(receipt["run_id"] for receipt in receipts) == sorted(runs)
    assert all(receipt["proof"] == "empty" for receipt in receipts)
    assert [row(run)["state"] for run in runs] == ["stopped"] * 3


def test_run_that_no_engine_could_make_is_over(home: Path) -> None:
    """It failed before there was a container, so no engine has to be asked whether one lives."""
    env = agentbox_env(home, DOCKER_HOST="unix:///nonexistent/docker.sock")
    agentbox("run", "--run-id", "nobox", "--image", "nosuch", "--", "true", env=env, check=125)
    (shown,) = json.loads(agentbox("ps", "-a", "--json", env=env, check=0).stdout)
    assert (shown["run_id"], shown["state"]) == ("nobox", "not started")
    agentbox("kill", "--all", env=env, check=0)
    agentbox("kill", "nobox", env=env, check=0)
