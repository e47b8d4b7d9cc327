"""`agentbox estop`: all runs at once, on every backend, proven; nothing starts until it is lifted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.beds import space
from tests.beds.dockerd import IMAGE, Dockerd
from tests.emergency.fleet import AGENT, Fleet, backends, bare_environment, new_id
from tests.support import agentbox, agentbox_argv, is_alive, wait_for

Bystander = subprocess.Popen[bytes]


@pytest.mark.bed("host", "nspawn", "nspawn-user")
def test_ends_all_runs_with_one_receipt_each(bed: str, fleet: Fleet, bystander: Bystander) -> None:
    kinds = backends(bed)
    for number in range(16):
        fleet.start(kinds[number % len(kinds)])
    done = agentbox("estop", "-r", "smoke in the lab", "--json", check=0)
    found = json.loads(done.stdout)
    assert found["on"] is True and found["proof"] == "empty" and found["unreachable"] == []
    assert found["reason"] == "smoke in the lab" and found["by"].startswith(f"uid {os.getuid()} ")
    assert {stop["run_id"] for stop in found["stops"]} == set(fleet.parents)
    assert {stop["reason"] for stop in found["stops"]} == {"smoke in the lab"}
    fleet.stopped()
    for run in fleet.parents:
        assert (fleet.home / "runs" / run / "ctl" / "control").read_text().startswith("STOP ")


@pytest.mark.bed("host", "nspawn-user")
def test_a_run_that_is_named_like_a_probe_is_a_run(bed: str, fleet: Fleet) -> None:
    for run in (new_id("probe"), f"probe-1-{uuid.uuid4().int}"[:60]):
        agentbox("run", "-d", "--run-id", run, "--backend", backends(bed)[0], "--", "sleep", "900", check=0)
        fleet.seen(run, 1)
        (started,) = fleet.records(run, "task.started")
        os.kill(started["launcher"]["pid"], signal.SIGKILL)
    found = json.loads(agentbox("reconcile", "--json", check=1).stdout)["findings"]
    assert {one["run_id"] for one in found if one["kind"] == "orphan"} == set(fleet.parents)
    agentbox("estop", check=0)
    fleet.stopped()


def test_another_home_is_left_alone(fleet: Fleet, tmp_path: Path) -> None:
    other = Fleet(tmp_path / "other")
    try:
        fleet.start()
        other.start()
        agentbox("estop", check=0)
        fleet.stopped()
        assert len(other.alive()) == 5
        agentbox("run", "--backend", "cgroup", "--", "true", home=other.home, check=0)
    finally:
        other.end()


def test_nothing_starts_until_it_is_lifted(fleet: Fleet) -> None:
    run = fleet.start("cgroup", "--on-exit", "leave")
    agentbox("estop", check=0)
    fleet.dead()
    for verb in (("run",), ("run", "-d"), ("spawn", run)):
        refused = agentbox(*verb, "--", "touch", str(fleet.home / "ran"), check=75)
        assert refused.stdout == "" and "estop --lift" in refused.stderr
    assert not (fleet.home / "ran").exists()
    assert agentbox("estop", check=0).stdout.startswith("emergency stop: nothing is alive")
    assert (fleet.home / "EMERGENCY_STOP").exists()
    agentbox("estop", "--lift", check=0)
    agentbox("run", "--backend", "cgroup", "--", "true", check=0)
    # STOP is final for the run, though.
    assert "STOP" in agentbox("spawn", run, "--", "true", check=75).stderr


def test_status_tells_on_off_since_when_and_by_whom(home: Path) -> None:
    assert agentbox("estop", "--status", check=3).stdout == "off\n"
    agentbox("estop", "-r", "a reason", check=0)
    assert "a reason" in agentbox("estop", "--status", check=0).stdout
    found = json.loads(agentbox("estop", "--status", "--json", check=0).stdout)
    assert found["on"] is True and found["reason"] == "a reason" and found["since"] and found["by"]
    assert json.loads(agentbox("estop", "--lift", "--json", check=0).stdout)["was_on"] is True
    assert json.loads(agentbox("estop", "--lift", "--json", check=0).stdout)["was_on"] is False
    assert json.loads(agentbox("estop", "--status", "--json", check=3).stdout)["on"] is False


@pytest.mark.parametrize("kind", ["empty", "text", "binary", "directory", "dangling link", "fifo"])
def test_whatever_has_the_name_counts(home: Path, kind: str) -> None:
    home.mkdir()
    path = home / "EMERGENCY_STOP"
    {
        "empty": path.touch,
        "text": lambda: path.write_text("stop it\n"),
        "binary": lambda: path.write_bytes(bytes(range(256)) * 64),
        "directory": path.mkdir,
        "dangling link": lambda: path.symlink_to("/nowhere"),
        "fifo": lambda: os.mkfifo(path),
    }[kind]()
    agentbox("run", "--backend", "cgroup", "--", "true", check=75)
    found = json.loads(agentbox("estop", "--status", "--json", check=0).stdout)
    assert found["on"] is True and found["since"] and found["by"].startswith(f"uid {os.getuid()} ")
    agentbox("estop", "--lift", check=0)
    assert not os.path.lexists(path)


@pytest.mark.bed("host", "nspawn", "nspawn-user")
def test_it_is_not_lifted_from_inside(bed: str, home: Path) -> None:
    """Own cgroup decides, whatever the agent does to its environment; also in a session of its own."""
    lift = " ".join(agentbox_argv("estop", "--lift"))
    unmarked = "env -u RUN_ID -u TASK_ID -u AGENTBOX_RUN_ID -u AGENTBOX_TASK_ID -u AGENTBOX_CONTROL"
    script = f"touch $AGENTBOX_HOME/EMERGENCY_STOP; {lift}; {unmarked} setsid -w {lift}"
    done = agentbox("run", "--backend", backends(bed)[-1], "--", "sh", "-c", script, check=75)
    assert done.stderr.count("outside of any box") == 2
    assert (home / "EMERGENCY_STOP").exists()
    agentbox("estop", "--lift", check=0)
    agentbox("run", "--backend", backends(bed)[-1], "--", "true", check=0)


def test_pressed_by_an_agent_it_ends_the_others_and_the_agent(fleet: Fleet, bystander: Bystander) -> None:
    fleet.start()
    presser = new_id("presser")
    script = f"setsid sleep 900 & {' '.join(agentbox_argv('estop', '-r', 'pressed'))}; sleep 900"
    done = agentbox("run", "--run-id", presser, "--backend", "cgroup", "--", "sh", "-c", script)
    assert done.returncode in (137, 143)
    fleet.stopped()
    started = fleet.records(presser, "task.started")[0]
    assert not space.populated(Path(started["box"]["cgroup"]).parent)
    assert "pressed" in (fleet.home / "EMERGENCY_STOP").read_text()


def test_nested_foreground_and_detached_runs(fleet: Fleet) -> None:
    """One stop for all of them, however they were started."""
    inner = " ".join(agentbox_argv("run", "--run-id", "inner", "--", "sh", "-c", f"'{AGENT}'"))
    outer = subprocess.Popen(
        agentbox_argv("run", "--run-id", "outer", "--backend", "cgroup", "--", "sh", "-c", f"{inner}; sleep 900"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    bare = agentbox_argv("run", "-d", "--run-id", "cron", "--backend", "cgroup", "--", "sh", "-c", AGENT)
    subprocess.run(bare, env=bare_environment(fleet.home), check=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: (fleet.home / "runs/inner/manifest.jsonl").exists() and fleet.records("inner", "task.started"))
    for run, count in (("cron", 5), ("inner", 5)):
        fleet.seen(run, count)
    agentbox("estop", check=0)
    assert outer.wait(30) in (137, 143)
    fleet.dead()
    for run in ("inner", "outer", "cron"):
        assert fleet.receipts(run), run


def test_a_run_without_a_record_is_stopped_as_well(fleet: Fleet) -> None:
    lost, broken = fleet.start(), fleet.start()
    (fleet.home / "runs" / lost).rename(fleet.home / "runs" / ".hidden")
    (fleet.home / "runs" / broken / "manifest.jsonl").write_bytes(b"\0\xff not a record\n{]\n" * 100)
    done = agentbox("estop", "--json")
    assert done.returncode == 4, done  # the receipt of the one has no place to go
    found = {stop["run_id"]: stop["proof"] for stop in json.loads(done.stdout)["stops"]}
    assert found == {lost: "empty", broken: "empty"}
    fleet.dead()


def test_a_launcher_that_is_gone(fleet: Fleet) -> None:
    run = fleet.start()
    launcher = fleet.records(run, "task.started")[0]["launcher"]["pid"]
    os.kill(launcher, signal.SIGKILL)
    agentbox("estop", check=0)
    fleet.stopped()


def test_ended_runs_get_no_second_receipt(fleet: Fleet) -> None:
    run = fleet.start()
    agentbox("kill", run, check=0)
    fleet.gone()
    assert json.loads(agentbox("estop", "--json", check=0).stdout)["stops"] == []
    assert len(fleet.receipts(run)) == 1


def test_two_at_once(fleet: Fleet) -> None:
    for _ in range(4):
        fleet.start()
    both = [subprocess.Popen(agentbox_argv("estop"), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    fleet.stopped()


@pytest.mark.parametrize("given", [["--lift", "--status"], ["-r", "x", "--lift"], ["more"], ["--json=1"]])
def test_usage(home: Path, given: list[str]) -> None:
    done = agentbox("estop", *given, check=2)
    assert done.stdout == "" and done.stderr.startswith("agentbox: ") and not home.exists()


def test_under_a_bare_environment(fleet: Fleet) -> None:
    fleet.start()
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m sandbox.cli.main estop"],
        env=bare_environment(fleet.home),
        cwd="/",
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    fleet.stopped()


@pytest.mark.bed("dockerd")
def test_containers_too(fleet: Fleet, dockerd: Dockerd) -> None:
    for backend, options in (("cgroup", ()), ("docker", ("--image", IMAGE))):
        for _ in range(2):
            run = new_id()
            given = ("-d", "--run-id", run, "--backend", backend, *options)
            agentbox("run", *given, "--", "sh", "-c", AGENT, check=0)
            fleet.seen(run, 5 if backend == "cgroup" else 6)  # the container's init as well
    try:
        agentbox("estop", check=0)
        fleet.stopped()
        states = {one["State"] for one in dockerd.engine.containers("agentbox.run")}
        assert states == {"exited"}
    finally:
        for one in dockerd.engine.containers("agentbox.run"):
            dockerd.engine.remove(one["Id"])


@pytest.mark.bed("dockerd")
def test_an_engine_that_hangs_holds_up_nothing(fleet: Fleet, dockerd: Dockerd, bystander: Bystander) -> None:
    run, other = new_id(), fleet.start()
    agentbox("run", "-d", "--run-id", run, "--image", IMAGE, "--", "sh", "-c", AGENT, check=0)
    fleet.seen(run, 6)
    assert dockerd.pid is not None
    os.kill(dockerd.pid, signal.SIGSTOP)
    try:
        stopper = subprocess.Popen(agentbox_argv("estop", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: fleet.alive() == [], 20, "all dead by the kernel alone")
        out, err = stopper.communicate(timeout=90)
        assert stopper.returncode == 1
        proofs = {stop["run_id"]: stop["proof"] for stop in json.loads(out)["stops"]}
        assert proofs == {run: "unknown", other: "empty"}
        assert b"docker" in err
    finally:
        os.kill(dockerd.pid, signal.SIGCONT)
    assert fleet.receipts(run)[-1]["proof"] == "unknown"
    agentbox("estop", check=0)
    assert [fleet.receipts(one)[-1]["proof"] for one in (run, other)] == ["empty", "empty"]
    assert len(fleet.receipts(other)) == 1
    for one in dockerd.engine.containers("agentbox.run"):
        assert one["State"] == "exited"
        dockerd.engine.remove(one["Id"])
    fleet.gone()


def test_an_engine_that_no_run_uses_does_not_matter(fleet: Fleet) -> None:
    fleet.start()
    env = {"DOCKER_HOST": f"unix://{fleet.home}/nothing.sock"}
    assert agentbox("estop", env=env, check=0).stderr == ""
    fleet.stopped()


@pytest.fixture
def full_disk(fleet: Fleet, tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    fleet.home = tmp_path / "small"
    fleet.home.mkdir()
    return fleet.home


@pytest.mark.parametrize("inodes", [True, False], ids=["no bytes", "no inodes"])
def test_on_a_full_disk(fleet: Fleet, full_disk: Path, inodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is ended all the same; exit 4 says what could not be written."""
    options = "mode=700," + ("size=1m" if inodes else "nr_inodes=64")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(full_disk)], check=True)
    try:
        monkeypatch.setenv("AGENTBOX_HOME", str(full_disk))
        run = fleet.start()
        _fill(full_disk, inodes)
        done = agentbox("estop", check=4)
        fleet.dead()
        assert f"{run}: " in done.stderr
        on = agentbox("estop", "--status").returncode == 0
        assert on is inodes, "an empty file needs no block, but an inode"
        assert on or "NOT refused" in done.stderr
        fleet.gone()
        wait_for(lambda: not _holders(full_disk), 30, "the launcher has ended")
    finally:
        subprocess.run(["umount", "-l", str(full_disk)], check=True)


def _fill(folder: Path, inodes: bool) -> None:
    """Until nothing more goes in: bytes into one file, or empty files."""
    try:
        for number in range(10**6):
            with open(folder / f"filler{number}", "wb", buffering=0) as file:
                while inodes and file.write(bytes(4096)):
                    continue
    except OSError:
        return


def _holders(folder: Path) -> list[int]:
    """Processes of this home, by their environment."""
    mark = f"AGENTBOX_HOME={folder}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and is_alive(int(name)):
                found.append(int(name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
