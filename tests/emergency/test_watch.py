"""`agentbox watch`: the file EMERGENCY_STOP, however it came there, and orders written by hand."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.beds import space
from tests.emergency.fleet import AGENT, Fleet, backends, bare_environment, new_id, watching
from tests.support import agentbox, agentbox_argv, wait_for

Bystander = subprocess.Popen[bytes]

WAYS = {
    "touch": "touch {path}",
    "shell": "echo enough > {path}",
    "moved in": "echo enough > {path}.new && mv {path}.new {path}",
    "linked": "echo enough > {path}.new && ln {path}.new {path}",
    "symbolic link": "ln -s /nowhere {path}",
    "directory": "mkdir {path}",
    "python": '{python} -c \'open("{path}", "w").close()\'',
    "dd": "dd if=/dev/zero of={path} bs=10 count=1 2>/dev/null",
    "cp": "cp /etc/passwd {path}",
}


@pytest.mark.parametrize("way", WAYS)
def test_made_by_any_means_it_ends_all_runs(fleet: Fleet, tmp_path: Path, way: str, bystander: Bystander) -> None:
    fleet.start()
    fleet.start()
    with watching(fleet.home, tmp_path) as watch:
        command = WAYS[way].format(path=fleet.home / "EMERGENCY_STOP", python=sys.executable)
        subprocess.run(["/bin/sh", "-c", command], env=bare_environment(fleet.home), check=True)
        fleet.stopped()
        wait_for(lambda: watch.told("STATUS=the emergency stop is ON"))


@pytest.mark.bed("host", "nspawn", "nspawn-user")
def test_sixteen_runs(bed: str, fleet: Fleet, tmp_path: Path, bystander: Bystander) -> None:
    kinds = backends(bed)
    for number in range(16):
        fleet.start(kinds[number % len(kinds)])
    with watching(fleet.home, tmp_path):
        (fleet.home / "EMERGENCY_STOP").touch()
        fleet.stopped()


def test_a_file_that_is_there_at_the_start_is_enforced(fleet: Fleet, tmp_path: Path) -> None:
    fleet.start()
    (fleet.home / "EMERGENCY_STOP").touch()
    with watching(fleet.home, tmp_path):
        fleet.stopped()


def test_it_stays_on_watch(fleet: Fleet, tmp_path: Path) -> None:
    """On, lifted, on again; while it is on, what comes to life by other means is ended too."""
    with watching(fleet.home, tmp_path) as watch:
        for _ in range(2):
            fleet.start()
            (fleet.home / "EMERGENCY_STOP").touch()
            fleet.stopped()
            agentbox("estop", "--lift", check=0)
            wait_for(lambda: watch.logged("lifted"))
        run = fleet.start()
        (fleet.home / "EMERGENCY_STOP").touch()
        fleet.stopped()
        late = subprocess.Popen(["sleep", "900"], start_new_session=True)
        parent = fleet.parents[run]
        parent.mkdir()
        os.setxattr(parent, "user.agentbox.home", str(fleet.home).encode())
        (parent / "cgroup.procs").write_text(str(late.pid))
        assert late.wait(30) == -9
        wait_for(lambda: not space.populated(parent))


def test_the_estop_of_a_person_beside_it(fleet: Fleet, tmp_path: Path) -> None:
    """Two that act on the same file: one receipt a run all the same, and the person is told what was ended."""
    for _ in range(4):
        fleet.start()
    with watching(fleet.home, tmp_path):
        done = agentbox("estop", "-r", "by a person", "--json", check=0)
        assert {stop["run_id"] for stop in json.loads(done.stdout)["stops"]} == set(fleet.parents)
        fleet.stopped()


PHASES = ("run.created", "task.intent", "box", "member", "task.started")


@pytest.mark.parametrize("phase", PHASES)
def test_the_file_at_any_moment_of_a_start(fleet: Fleet, tmp_path: Path, phase: str, bystander: Bystander) -> None:
    """From 0 to 20 ms after each step of a start: nothing is alive at the end, and nothing can come."""
    path = fleet.home / "EMERGENCY_STOP"
    with watching(fleet.home, tmp_path):
        for delay in (0, 1, 2, 5, 10, 20):
            run = new_id()
            starting = _start(run)
            wait_for(lambda run=run, one=starting: _has_come(fleet, run, phase) or one.poll() is not None)
            threading.Event().wait(delay / 1000)
            path.touch()
            assert starting.wait(60) in (0, 75)
            wait_for(lambda run=run: _recorded_end(fleet, run), 30, "the launcher is through")
            assert not space.populated(_parent(run))
            assert not any(space.is_alive(record["pid"]) for record in fleet.records(run, "task.started"))
            agentbox("spawn", run, "--", "true", check=75)
            path.unlink()


def _start(run: str) -> subprocess.Popen[bytes]:
    argv = agentbox_argv("run", "-d", "--run-id", run, "--backend", "cgroup", "--", "sh", "-c", AGENT)
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _has_come(fleet: Fleet, run: str, phase: str) -> bool:
    if phase in ("box", "member"):
        return (_parent(run) / "main").exists() and (phase == "box" or space.populated(_parent(run)))
    try:
        return bool(fleet.records(run, phase))
    except (OSError, ValueError):
        return False


def _parent(run: str) -> Path:
    mount = space.cgroup2_mount()
    assert mount is not None
    return mount / "agentbox" / run


def _recorded_end(fleet: Fleet, run: str) -> bool:
    return bool(fleet.records(run, "run.ended"))


# the home comes and goes


def test_a_home_that_does_not_exist_yet(fleet: Fleet, tmp_path: Path) -> None:
    fleet.home = tmp_path / "not" / "there" / "yet"
    with watching(fleet.home, tmp_path):
        assert not (tmp_path / "not").exists()
        fleet.start()
        (fleet.home / "EMERGENCY_STOP").touch()
        fleet.stopped()


def test_a_home_and_its_stop_file_made_in_one_go(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    with watching(home, tmp_path) as watch:
        (tmp_path / "elsewhere" / "b").mkdir(parents=True)
        (tmp_path / "elsewhere" / "b" / "EMERGENCY_STOP").touch()
        (tmp_path / "elsewhere").rename(tmp_path / "a")
        wait_for(lambda: watch.told("STATUS=the emergency stop is ON"))


def test_a_home_that_is_removed_and_made_again(fleet: Fleet, tmp_path: Path) -> None:
    with watching(fleet.home, tmp_path):
        for _ in range(2):
            shutil.rmtree(fleet.home, ignore_errors=True)
            fleet.start()
            (fleet.home / "EMERGENCY_STOP").touch()
            fleet.stopped()
            wait_for(lambda: all(_recorded_end(fleet, run) for run in fleet.parents))
            fleet.parents.clear()
            fleet.pids.clear()


def test_a_home_with_another_mounted_over_it(fleet: Fleet, tmp_path: Path) -> None:
    """A mount makes no event."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    fleet.home.mkdir()
    with watching(fleet.home, tmp_path) as watch:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700", "tmpfs", str(fleet.home)], check=True)
        try:
            (fleet.home / "EMERGENCY_STOP").touch()
            wait_for(lambda: watch.told("STATUS=the emergency stop is ON"))
        finally:
            subprocess.run(["umount", "-l", str(fleet.home)], check=True)


def test_more_events_than_the_queue_holds(fleet: Fleet, tmp_path: Path) -> None:
    """The watch is stopped (SIGSTOP) while 20,000 names come and go: the queue overflows, the order counts."""
    run = fleet.start()
    with watching(fleet.home, tmp_path) as watch:
        watch.process.send_signal(19)
        wait_for(lambda: "T (stopped)" in Path(f"/proc/{watch.process.pid}/status").read_text())
        try:
            for number in range(20_000):
                path = fleet.home / "runs" / f"x{number}"
                path.touch()
                path.unlink()
            (fleet.home / "runs" / run / "ctl" / "control").write_text("STOP 9\n")
        finally:
            watch.process.send_signal(18)
        fleet.stopped()


def test_a_manager_that_does_not_read_holds_up_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """Its queue of datagrams is full after ten: the watch goes on all the same."""
    with watching(fleet.home, tmp_path, WATCHDOG_USEC="30000") as watch:
        for _ in range(2):
            fleet.start()
            (fleet.home / "EMERGENCY_STOP").touch()
            fleet.stopped()
            (fleet.home / "EMERGENCY_STOP").unlink()
            wait_for(lambda: watch.log.read_text().count("lifted") == len(fleet.parents))


@pytest.mark.parametrize("limit", ["instances", "watches"])
def test_without_inotify(fleet: Fleet, tmp_path: Path, limit: str) -> None:
    """At the limit it says which sysctl to raise, and looks in turns. A user namespace has limits of its own."""
    first, second = fleet.start(), fleet.start()
    script = f'echo 0 > /proc/sys/user/max_inotify_{limit} && exec "$@"'
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    with watching(fleet.home, tmp_path, prefix=prefix) as watch:
        assert watch.logged(f"fs.inotify.max_user_{limit}")
        (fleet.home / "runs" / first / "ctl" / "control").write_text("STOP\n")
        wait_for(lambda: fleet.receipts(first))
        assert fleet.receipts(second) == []
        (fleet.home / "EMERGENCY_STOP").touch()
        fleet.stopped()


# orders written by hand


@pytest.mark.parametrize("text", ["STOP", "STOP\n", "STOP 5\n", "STOP 5\nreason: enough\n"])
def test_stop_in_a_control_file_ends_that_run(fleet: Fleet, tmp_path: Path, text: str) -> None:
    other = Fleet(fleet.home)
    try:
        other.start()
        with watching(fleet.home, tmp_path):
            run = fleet.start()  # begun after the watch
            (fleet.home / "runs" / run / "ctl" / "control").write_text(text)
            fleet.stopped()
            (order,) = fleet.records(run, "control.set")
            assert order["order"] == "STOP" and "written into" in order["reason"]
            assert len(other.alive()) == 5
            assert "STOP" in agentbox("spawn", run, "--", "true", check=75).stderr
            agentbox("kill", *other.parents, check=0)
            other.gone()
    finally:
        other.end()


@pytest.mark.parametrize("how", ["editor", "vim", "append", "held open"])
def test_as_editors_and_programs_write(fleet: Fleet, tmp_path: Path, how: str) -> None:
    with watching(fleet.home, tmp_path):
        run = fleet.start()
        control = fleet.home / "runs" / run / "ctl" / "control"
        if how == "editor":
            control.with_name("control~").write_text("STOP 3\n")
            control.with_name("control~").rename(control)
        elif how == "vim":
            control.rename(control.with_name("control~"))
            control.write_text("STOP 3\n")
        elif how == "append":
            text = control.read_text()
            subprocess.run(["sed", "-i", "1s/.*/STOP 3/; /^by:/d", str(control)], check=True)
            assert control.read_text() != text
        else:
            with open(control, "w") as file:
                file.write("STOP")
                file.flush()
                fleet.dead()
        fleet.stopped()


@pytest.mark.parametrize("text", ["", "RUN 7\n", "PAUSE 7\n", "STOPPED\n", "stop\n", "# STOP\n", "\0\0\0"])
def test_what_is_no_stop_ends_nothing(fleet: Fleet, tmp_path: Path, text: str) -> None:
    with watching(fleet.home, tmp_path) as watch:
        run, other = fleet.start(), fleet.start()
        (fleet.home / "runs" / run / "ctl" / "control").write_text(text)
        (fleet.home / "runs" / other / "ctl" / "control").write_text("STOP")
        wait_for(lambda: fleet.receipts(other))
        assert fleet.receipts(run) == [] and not watch.logged(run)
        assert all(space.is_alive(pid) for pid in fleet.pids[run])
    agentbox("kill", run, check=0)
    fleet.gone()


def test_a_task_of_its_own(fleet: Fleet, tmp_path: Path) -> None:
    run = fleet.start()
    agentbox("spawn", run, "-d", "--task", "w1", "--", "sleep", "900", check=0)
    (worker,) = [one for one in fleet.records(run, "task.started") if one["task_id"] == "w1"]
    with watching(fleet.home, tmp_path):
        (fleet.home / "runs" / run / "ctl" / "tasks" / "w1").write_text("STOP\n")
        wait_for(lambda: not space.is_alive(worker["pid"]))
        wait_for(lambda: [one for one in fleet.receipts(run) if one["task_id"] == "w1"])
        assert all(space.is_alive(pid) for pid in fleet.pids[run])
    agentbox("kill", run, check=0)
    fleet.gone()


def test_an_abort_of_agentbox_keeps_its_grace(fleet: Fleet, tmp_path: Path) -> None:
    """The order that `abort` writes is its own to carry out."""
    done = fleet.home / "done"
    script = f"trap 'echo > {done}; exit' USR1; echo > {done}.ready; while :; do sleep 0.05; done"
    with watching(fleet.home, tmp_path) as watch:
        run = new_id()
        agentbox("run", "-d", "--run-id", run, "--backend", "cgroup", "--", "sh", "-c", script, check=0)
        wait_for(lambda: Path(f"{done}.ready").exists())
        pid = fleet.records(run, "task.started")[0]["pid"]
        aborting = subprocess.Popen(agentbox_argv("abort", run, "--grace", "60"), stdout=subprocess.DEVNULL)
        control = fleet.home / "runs" / run / "ctl" / "control"
        wait_for(lambda: control.read_text().startswith("STOP"))
        os.kill(pid, 10)
        assert aborting.wait(60) == 0
        assert done.exists() and not watch.logged(run)


def test_with_a_grace_it_aborts(fleet: Fleet, tmp_path: Path) -> None:
    with watching(fleet.home, tmp_path, "--grace", "20s"):
        run = fleet.start(command=("sh", "-c", f"trap 'touch {tmp_path}/left; exit' USR1; {AGENT}"))
        control = fleet.home / "runs" / run / "ctl" / "control"
        control.write_text("STOP\n")
        wait_for(lambda: "by: " in control.read_text(), what="the watch takes it up")
        assert len(fleet.alive()) == 5
        for pid in fleet.pids[run][::-1]:
            with contextlib.suppress(ProcessLookupError):  # one may end with another
                os.kill(pid, 10)
        fleet.dead()
        wait_for(lambda: fleet.receipts(run))
        (receipt,) = fleet.receipts(run)
        assert [rung["rung"] for rung in receipt["rungs"]][:2] == ["order", "grace"]
        fleet.gone()


# once, and until lifted


def test_once_enforces_and_ends(fleet: Fleet) -> None:
    assert agentbox("watch", "--once", check=0).stderr == ""
    first, second = fleet.start(), fleet.start()
    assert agentbox("watch", "--once", check=0).stderr == ""
    (fleet.home / "runs" / first / "ctl" / "control").write_text("STOP\n")
    done = subprocess.run(
        [sys.executable, "-m", "sandbox.cli.main", "watch", "--once"],
        env=bare_environment(fleet.home),
        capture_output=True,
        text=True,
        check=True,
    )
    assert first in done.stderr and second not in done.stderr
    assert all(space.is_alive(pid) for pid in fleet.pids[second])
    (fleet.home / "EMERGENCY_STOP").touch()
    agentbox("watch", "--once", check=0)
    fleet.stopped()
    assert agentbox("watch", "--once", check=0).stdout == ""


def test_until_lifted_ends_when_it_is(fleet: Fleet, tmp_path: Path) -> None:
    agentbox("watch", "--until-lifted", check=0)  # not on: at once
    fleet.start()
    (fleet.home / "EMERGENCY_STOP").touch()
    with watching(fleet.home, tmp_path, "--until-lifted") as watch:
        fleet.stopped()
        assert watch.process.poll() is None
        agentbox("estop", "--lift", check=0)
        assert watch.process.wait(30) == 0


def test_it_feeds_the_watchdog(home: Path, tmp_path: Path) -> None:
    with watching(home, tmp_path, WATCHDOG_USEC="300000") as watch:
        wait_for(lambda: watch.told("WATCHDOG=1") and watch.states.count("WATCHDOG=1") >= 3)


@pytest.mark.parametrize("given", [["--once", "--until-lifted"], ["--grace", "soon"], ["more"]])
def test_usage(home: Path, given: list[str]) -> None:
    done = agentbox("watch", *given, check=2)
    assert done.stdout == "" and done.stderr.startswith("agentbox: ")
    assert not home.exists()
