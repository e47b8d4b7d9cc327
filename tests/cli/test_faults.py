"""A kill whose surroundings fail: the disk is full, the record can't be written, no process can be made.

The kill comes first and is proven; that only its record failed is told by exit status 4. A start under the
same faults leaves nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.mounts import mount, own_mounts
from tests.cli.runs import Done, gone, inspect, one_line, pids_of, records, run_dir, start, wait_pids
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
FILLER = "filler"


@pytest.fixture
def run(home: Path, bystander: subprocess.Popen[bytes]) -> str:
    """A live run of three processes, one of them in a session of its own."""
    name = start("sh", "-c", "setsid sleep 901 & sleep 902 & wait")
    wait_pids(name, 3)
    return name


def killed(run: str, code: int, *options: str) -> Done:
    """Kill the run, which must die with this exit status and a receipt that proves it."""
    pids = pids_of(run)
    done = agentbox("kill", run, "--json", *options)
    (receipt,) = json.loads(done.stdout)
    assert receipt["proof"] == "empty", receipt
    assert {process["pid"] for process in receipt["processes"]} == set(pids)
    assert not any(map(is_alive, pids))
    assert done.returncode == code, done.stderr
    assert all(line.startswith("agentbox: ") for line in done.stderr.splitlines())
    assert bool(done.stderr) == (code != 0)
    return done


def over(run: str) -> None:
    """STOP stands: nothing starts in the run any more, and no box of it is left."""
    for options in ((), ("-d",)):
        done = agentbox("spawn", *options, run, "--", "true")
        assert done.returncode == 75, done.stderr
        one_line(done)
    wait_for(lambda: gone(run), what="the box is removed")


@ROOT
class TestFullDisk:
    @pytest.fixture(autouse=True)
    def disk(self, home: Path) -> Iterator[None]:
        """The home is a file system of 256 KiB."""
        home.mkdir()
        with own_mounts():
            mount("none", home, "tmpfs", options="size=256k,mode=700")
            yield

    @staticmethod
    def fill(home: Path) -> None:
        with open(home / FILLER, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(bytes(4096))

    def test_kill(self, home: Path, run: str) -> None:
        self.fill(home)
        done = killed(run, 4)
        assert "No space left" in done.stderr
        over(run)
        (home / FILLER).unlink()
        over(run)
        assert agentbox("wait", run).returncode == 137

    def test_abort(self, home: Path, run: str) -> None:
        self.fill(home)
        pids = pids_of(run)
        assert agentbox("abort", run, "--grace", "0").returncode == 4
        assert not any(map(is_alive, pids))
        over(run)

    @pytest.mark.parametrize("options", [(), ("-d",)])
    def test_start(self, home: Path, options: tuple[str, ...], run_id: str) -> None:
        self.fill(home)
        done = agentbox("run", *options, "--run-id", run_id, "--", "sleep", "900", check=125)
        one_line(done, str(home), "No space left")
        assert not list(home.glob("runs/*"))

    @pytest.mark.parametrize("room", range(4096, 6 * 4096, 4096))
    @pytest.mark.parametrize("options", [(), ("-d",)])
    def test_start_on_an_almost_full_disk(self, home: Path, options: tuple[str, ...], room: int, run_id: str) -> None:
        """Wherever it runs out: all of the run or nothing of it."""
        self.fill(home)
        os.truncate(home / FILLER, (home / FILLER).stat().st_size - room)
        long = "x" * 3000
        done = agentbox("run", *options, "--run-id", run_id, "--", "sh", "-c", f": {long}; exit 3")
        if done.returncode == 125:
            one_line(done, "pace")  # on its file system, or none left on the device
            if (home / f"runs/{run_id}").exists():
                one_line(agentbox("spawn", run_id, "--", "true", check=75))
        elif options:
            assert done.returncode == 0
            wait_for(lambda: gone(run_id))
        else:
            assert done.returncode == 3
        assert gone(run_id)

    def test_spawn(self, home: Path, run: str) -> None:
        self.fill(home)
        done = agentbox("spawn", run, "--task", "t", "--", "sleep", "900", check=125)
        one_line(done, "No space left")
        assert len(pids_of(run)) == 3
        (home / FILLER).unlink()
        agentbox("spawn", run, "--task", "t", "--", "true", check=0)
        killed(run, 0)

    def test_end_of_a_command(self, home: Path, run_id: str) -> None:
        """What the command did counts, whatever became of the record."""
        line = f"cat /dev/zero > {home}/{FILLER} 2>/dev/null; exit 3"
        done = agentbox("run", "--run-id", run_id, "--", "sh", "-c", line, check=3)
        assert "Traceback" not in done.stderr and "unexpected: " not in done.stderr
        assert gone(run_id)
        (home / FILLER).unlink()
        over(run_id)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """flock(2) on a file, held by somebody else."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class TestHeldLocks:
    def test_of_the_manifest(self, run: str) -> None:
        """The record is written without it, and says so."""
        with held(run_dir(run) / "manifest.jsonl"):
            killed(run, 0)
            wait_for(lambda: records(run, "run.ended"), 30)
        assert [r["prev"] for r in records(run, "stop.receipt")] == [None]
        verdict = json.loads(agentbox("verify", run, "--json", check=0).stdout)
        assert verdict["unlocked"]

    def test_of_the_orders(self, run: str) -> None:
        with held(run_dir(run) / "ctl"):
            killed(run, 0)
        over(run)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _symlink(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _full_directory(path: Path) -> None:
    _directory(path)
    (path / "x").touch()


def _gone(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(100_000) + b'\n\n{"event": "run.created"\n\0\0\0[1,2]\nnull\n' + b"\xff" * 100)


def _digit_of_another_script(path: Path) -> None:
    """str.isdigit takes it for a number, and int does not."""
    path.write_text("RUN \u00b2\n")


def _huge(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b'{"torn": "' + b"x" * (64 << 20))


def _unreadable(path: Path) -> None:
    path.chmod(0)


def _others(path: Path) -> None:
    os.chown(path, 12345, 12345)


def _order(text: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(text) and None


MANIFEST = [(_fifo, 4), (_symlink, 4), (_dangling, 4), (_directory, 4), (_full_directory, 4)]
MANIFEST += [(_gone, 0), (_empty, 0), (_garbage, 0), (_huge, 0)]
CONTROL = [(_fifo, 0), (_symlink, 0), (_dangling, 0), (_directory, 4), (_full_directory, 4)]
CONTROL += [(_gone, 0), (_empty, 0), (_garbage, 0)]
CONTROL += [(_order(b"RUN 99999999999999999999\n"), 0), (_order(b"RUN -1\n"), 0), (_order(b"RUN 7"), 0)]
by_name = {"ids": lambda value: getattr(value, "__name__", str(value)).strip("_")}


class TestReplacedFiles:
    """What stands in the place of the record or the order, put there by whoever could."""

    @pytest.mark.parametrize(("spoil", "code"), MANIFEST, **by_name)
    def test_manifest(self, spoil: Callable[[Path], None], code: int, run: str) -> None:
        spoil(run_dir(run) / "manifest.jsonl")
        killed(run, code)
        over(run)
        assert agentbox("inspect", run).returncode == 0
        assert agentbox("ps", "-a").returncode == 0
        assert agentbox("verify", run).returncode in (0, 1, 2)
        printed = subprocess.run(agentbox_argv("manifest", run), env=agentbox_env(), capture_output=True)
        assert printed.returncode in (0, 2) and b"Traceback" not in printed.stderr

    @pytest.mark.parametrize(("spoil", "code"), CONTROL, **by_name)
    def test_control(self, spoil: Callable[[Path], None], code: int, run: str) -> None:
        spoil(run_dir(run) / "ctl/control")
        killed(run, code)
        over(run)
        assert inspect(run)["order"] == "STOP"

    @ROOT
    def test_control_of_another_owner(self, run: str) -> None:
        _others(run_dir(run) / "ctl/control")
        one_line(agentbox("spawn", run, "--", "true", check=75), "12345")
        killed(run, 0)
        over(run)

    @pytest.mark.parametrize("spoil", [_fifo, _directory, _gone, _empty, _garbage, _digit_of_another_script], **by_name)
    def test_order_that_is_none_is_a_stop(self, spoil: Callable[[Path], None], run: str) -> None:
        spoil(run_dir(run) / "ctl/control")
        one_line(agentbox("spawn", run, "--", "true", check=75), "STOP")
        assert inspect(run)["order_trusted"] is False
        killed(run, 4 if spoil is _directory else 0)

    def test_directory_of_the_orders_is_gone(self, run: str) -> None:
        shutil.rmtree(run_dir(run) / "ctl")
        killed(run, 4)
        over(run)

    def test_directory_of_the_orders_is_a_link(self, run: str, tmp_path: Path) -> None:
        (run_dir(run) / "ctl").rename(tmp_path / "ctl")
        (run_dir(run) / "ctl").symlink_to(tmp_path / "ctl")
        killed(run, 0)
        over(run)

    def test_directory_of_the_run_is_gone(self, home: Path, run: str) -> None:
        """It is listed and killed by the id that it is listed by."""
        shutil.rmtree(run_dir(run))
        listed = agentbox("ps", "-q", check=0).stdout.split()
        assert listed == [run]
        pids = [process["pid"] for box in inspect(run)["boxes"] for process in box["processes"]]
        done = agentbox("kill", run)
        assert done.returncode == 4, done.stderr
        assert not any(map(is_alive, pids))
        assert agentbox("ps", "-a", "-q", check=0).stdout == ""

    @pytest.mark.bed("nspawn-user")
    def test_unreadable_for_its_owner(self, run: str) -> None:
        for name in ("manifest.jsonl", "ctl/control"):
            _unreadable(run_dir(run) / name)
        pids = [process["pid"] for box in inspect(run)["boxes"] for process in box["processes"]]
        assert len(pids) == 3
        done = agentbox("kill", run)
        assert done.returncode == 4
        assert not any(map(is_alive, pids))


@ROOT
class TestNoFreePids:
    @pytest.fixture
    def full_group(self) -> Iterator[Path]:
        """A v1 pids group that holds one process and no more."""
        top = Path("/sys/fs/cgroup/pids")
        if not (top / "cgroup.procs").exists():
            pytest.skip("no v1 pids hierarchy")
        group = top / f"testbed-{os.getpid()}"
        group.mkdir()
        (group / "pids.max").write_text("1")
        yield group
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()

    def inside(self, group: Path, *args: str) -> Done:
        argv = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *agentbox_argv(*args)]
        return subprocess.run(argv, env=agentbox_env(), capture_output=True, text=True, timeout=60)

    @pytest.mark.may_skip("only where the machine has cgroup v1")
    @pytest.mark.parametrize("verb", [("kill",), ("abort", "--grace", "0"), ("kill", "--json")], ids=" ".join)
    def test_kill(self, full_group: Path, verb: tuple[str, ...], run: str) -> None:
        pids = pids_of(run)
        done = self.inside(full_group, verb[0], run, *verb[1:])
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert not any(map(is_alive, pids))
        for pid in pids:
            assert str(pid) in done.stdout

    @pytest.mark.may_skip("only where the machine has cgroup v1")
    @pytest.mark.parametrize("args", [("run",), ("run", "-d"), ("run", "--backend", "cgroup")], ids=" ".join)
    def test_start(self, full_group: Path, args: tuple[str, ...], home: Path) -> None:
        done = self.inside(full_group, *args, "--", "true")
        assert done.returncode == 125
        one_line(done, "Resource temporarily unavailable")


@pytest.mark.bed("nspawn-user")
def test_kill_at_the_limit_of_processes(run: str) -> None:
    pids = pids_of(run)
    argv = ["prlimit", "--nproc=1:1", *agentbox_argv("kill", run)]
    done = subprocess.run(argv, env=agentbox_env(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not any(map(is_alive, pids))
