"""Processes of a run outside of its boxes: each way out, the evidence told, and what is never ended for it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runs import inspect, run_dir, start
from tests.reconcile.looking import Found, end, end_launcher, findings, kinds, one, reconcile
from tests.support import agentbox, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("runs")


def escapees() -> list[Found]:
    return [found for found in findings() if found["kind"] == "escapee"]


def escapee(word: str) -> Found:
    """The one that has `word` somewhere."""

    def look() -> list[Found]:
        return [found for found in escapees() if word in json.dumps(found)]

    found = wait_for(look, 30, f"an escapee with {word}")
    assert len(found) == 1, found
    return found[0]


def in_folder(folder: Path, *command: str, options: tuple[str, ...] = ()) -> str:
    """A run that is started in `folder`."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return start(*command, options=options)
    finally:
        os.chdir(before)


def read_pid(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), 10, str(path))
    return int(path.read_text())


def asleep(seconds: str) -> list[int]:
    """The live processes that run `sleep SECONDS`."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"sleep") and words[1:2] == [seconds.encode()] and is_alive(pid):
                found.append(pid)
        except OSError:
            continue
    return found


def settled() -> None:
    """Let so much time pass that what was before the run is told from what came with it."""
    time.sleep(0.5)


@pytest.fixture
def nap() -> Iterator[str]:
    """A number of seconds that no other test sleeps; whoever sleeps it is ended after the test."""
    seconds = f"9{os.getpid():07}{time.monotonic_ns() % 1000:03}"
    yield seconds
    wait_for(lambda: not end_all(seconds))


def end_all(seconds: str) -> list[int]:
    """SIGKILL who sleeps so long, or that long and a fraction; who they were."""
    found = [pid for part in ("", ".1", ".2") for pid in asleep(seconds + part)]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return found


def test_process_that_moved_to_another_cgroup(free_cgroup: Path, tmp_path: Path, nap: str) -> None:
    """While the run lives it is shown; when the run is over it is ended, for its parent was seen in the box."""
    script = f"sh -c 'echo 0 > {free_cgroup}/cgroup.procs; echo $$ > {tmp_path}/pid; exec sleep {nap}' & wait"
    run = start("sh", "-c", script)
    pid = read_pid(tmp_path / "pid")
    found = escapee(nap)
    assert (found["run_id"], found["evidence"]["pid"], found["severity"]) == (run, pid, "security")
    assert found["evidence"]["cgroup"] == str(free_cgroup)
    assert set(found["evidence"]["told_by"]) == {"descends from", "environment"}
    assert found["evidence"]["proven"] is True
    assert re.search(r"; proven: its (parent|session leader) \d+ is a process of the run$", found["what"])
    text = agentbox("reconcile", "--kill", check=1).stdout
    left = f"escapee of run {run}: left: its run is not over (running); to end it: kill -KILL {pid}\n"
    assert found["what"] in text and text.count(left) == 1
    assert is_alive(pid)
    end_launcher(run)
    assert kinds() == ["escapee", "orphan"]
    reconcile("--kill", check=0)
    assert not is_alive(pid)


def test_main_that_moved_away_and_lost_its_launcher(free_cgroup: Path, tmp_path: Path, nap: str) -> None:
    """The record names it: pid, start and boot."""
    run = start("sh", "-c", f"echo 0 > {free_cgroup}/cgroup.procs; echo $$ > {tmp_path}/pid; exec sleep {nap}")
    pid = read_pid(tmp_path / "pid")
    assert "recorded" in escapee(nap)["evidence"]["told_by"]
    assert inspect(run)["launcher_alive"] is True
    end_launcher(run)
    reconcile("--kill", check=0)
    assert not is_alive(pid)


def marked(run: str, home: Path, *argv: str) -> subprocess.Popen[bytes]:
    """A process that carries a run's mark, as one that was started by a server outside with its environment."""
    mark = {"AGENTBOX_RUN_ID": run, "AGENTBOX_CONTROL": str(home / "runs" / run / "ctl/control")}
    secret = {"GITHUB_TOKEN": "canary-12"}
    return subprocess.Popen(argv, env={**os.environ, **mark, **secret}, start_new_session=True)


def test_mark_alone_is_shown_and_never_ended(home: Path, tmp_path: Path, nap: str) -> None:
    """The environment is evidence, not membership: it can be copied."""
    live = start("sleep", "900")
    over = start("sleep", "900")
    end_launcher(over)
    processes = [marked(run, home, "sleep", nap) for run in (live, over, "no-such-run")]
    stranger = marked(live, tmp_path / "another-home", "sleep", nap)
    try:
        wait_for(lambda: len(asleep(nap)) == 4)
        found = escapees()
        assert {one["run_id"] for one in found} == {live, over, "no-such-run"}
        assert {one["evidence"]["pid"] for one in found} == {process.pid for process in processes}
        for one_of_them in found:
            assert list(one_of_them["evidence"]["told_by"]) == ["environment"]
            assert one_of_them["evidence"]["proven"] is False
            assert one_of_them["evidence"]["secret_variables"] == ["GITHUB_TOKEN"]
            assert one_of_them["command"] == f"kill -KILL {one_of_them['evidence']['pid']}"
            assert one_of_them["what"].endswith("; not proven: its environment names the run")
        lines = agentbox("reconcile", "--kill", check=1).stdout.splitlines()
        assert len([line for line in lines if line.startswith(f"orphan of run {over}: empty")]) == 1
        for one_of_them in found:
            told = f"left: not proven to be of the run; to end it: {one_of_them['command']}"
            assert f"escapee of run {one_of_them['run_id']}: {told}" in lines
        assert all(is_alive(process.pid) for process in [*processes, stranger])
    finally:
        for process in [*processes, stranger]:
            end(process)


def test_what_stays_in_its_box_is_no_escapee() -> None:
    run = start("sh", "-c", "(setsid sleep 900 &); env -i sleep 900 & sleep 900")
    wait_for(lambda: inspect(run)["processes"] == 4)
    assert kinds() == []


@contextlib.contextmanager
def terminal_server(program: str, folder: Path) -> Iterator[str]:
    """A server of windows with one of its own; the command that opens another one from anywhere."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (apt-get install {program})")
    name = f"outside-{os.getpid()}"
    if program == "tmux":
        start_it, opens = ["tmux", "-L", name, "-f", "/dev/null", "new", "-d", "sleep 900"], f"tmux -L {name} new -d"
        end_it = ["tmux", "-L", name, "kill-server"]
    else:
        start_it, opens = (
            ["screen", "-c", "/dev/null", "-dmS", name, "sleep", "900"],
            'STY=$(ls "$SCREENDIR") screen -c /dev/null',
        )
        end_it = ["screen", "-S", name, "-X", "quit"]
    subprocess.run(start_it, cwd=folder, check=True)
    try:
        yield opens
    finally:
        # A server of screen takes orders a moment after it was started.
        wait_for(lambda: subprocess.run(end_it, capture_output=True).returncode == 0)


@pytest.mark.parametrize("program", ["tmux", "screen"])
def test_window_of_a_terminal_server_outside(
    program: str, tmp_path: Path, nap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D01: the client is inside, the worker in the old server's cgroup. The server's other windows are nobody's."""
    folder, sockets = tmp_path / "project", tmp_path / "sockets"
    folder.mkdir()
    sockets.mkdir(mode=0o700)
    monkeypatch.setenv("SCREENDIR", str(sockets))
    with terminal_server(program, folder) as opens:
        wait_for(lambda: program == "tmux" or list(sockets.iterdir()))
        settled()
        run = in_folder(folder, "sh", "-c", f"{opens} sleep {nap}; sleep 900")
        found = escapee(nap)
        assert (found["run_id"], found["severity"]) == (run, "info")
        assert found["evidence"]["told_by"]["door"].startswith(f"started by {program}")
        assert len(escapees()) == 1
        reconcile("--kill", check=1)
        assert asleep(nap)


@pytest.mark.bed("nspawn")
def test_units_made_from_inside(nap: str) -> None:
    """systemd-run: a scope keeps the environment, a service and a timer only came to be while the run was alive."""
    before = f"before-{os.getpid()}"
    subprocess.run(["systemd-run", "-q", f"--unit={before}", "sleep", "900"], check=True)
    settled()
    unit = f"work-{os.getpid()}"
    script = (
        f"systemd-run -q --scope sleep {nap}.1 & systemd-run -q --unit={unit} sleep {nap}.2;"
        f" systemd-run -q --on-active=900 --unit={unit}-later true; sleep 900"
    )
    run = start("sh", "-c", script)
    try:
        scope, service = escapee(f"{nap}.1"), escapee(f"{nap}.2")
        timer = escapee("timer")
        assert {one["run_id"] for one in (scope, service, timer)} == {run}
        assert "environment" in scope["evidence"]["told_by"] and scope["severity"] == "security"
        assert unit in service["evidence"]["told_by"]["door"] and service["severity"] == "info"
        assert service["command"] == f"systemctl stop {unit}.service"
        assert timer["command"] == f"systemctl stop {unit}-later.timer"
        assert len(escapees()) == 3
        reconcile("--kill", check=1)
        assert asleep(f"{nap}.2")
        for found in (service, timer):
            subprocess.run(found["command"].split(), check=True)
        os.kill(scope["evidence"]["pid"], signal.SIGKILL)
        wait_for(lambda: not escapees())
    finally:
        subprocess.run(["systemctl", "stop", before, f"{unit}.service", f"{unit}-later.timer"], capture_output=True)
        end_all(nap)


@pytest.mark.bed("nspawn")
def test_jobs_of_at(nap: str) -> None:
    """Queued for later, and running now: both have the mark that at(1) saves with the environment."""
    run = start("sh", "-c", f"echo 'sleep {nap}' | at now; echo 'sleep {nap}' | at now + 2 hours; sleep 900")
    running, queued = escapee(nap), escapee("is queued")
    assert running["run_id"] == queued["run_id"] == run
    assert "environment" in running["evidence"]["told_by"] and "environment" in queued["evidence"]["told_by"]
    reconcile("--kill", check=1)
    assert asleep(nap)
    subprocess.run(queued["command"].split(), check=True)
    end_all(nap)
    wait_for(lambda: not escapees())


@pytest.mark.bed("nspawn")
def test_jobs_of_cron(nap: str) -> None:
    """A crontab changed from inside is told at once, the job that cron makes of it when it runs."""
    run = start("sh", "-c", f"echo '* * * * * sleep {nap}' | crontab -; sleep 900")
    try:
        changed = escapee("crontab of root")
        assert (changed["run_id"], changed["severity"]) == (run, "info")
        wait_for(lambda: asleep(nap), 90, "cron runs the job")
        job = escapee(f"sleep {nap}")
        assert "crontab" in job["evidence"]["told_by"]["door"]
        assert reconcile("--kill", check=1)["ended"] == []
        assert asleep(nap)
    finally:
        subprocess.run(["crontab", "-r"], check=True)
    end_all(nap)
    wait_for(lambda: not escapees())


def test_run_directory_deleted_and_a_mark_left(home: Path, nap: str) -> None:
    process = marked("gone-run", home, "sleep", nap)
    try:
        wait_for(lambda: asleep(nap))
        assert not run_dir("gone-run").exists()
        assert one("escapee")["run_id"] == "gone-run"
        assert one("escapee", "--run", "gone-run")["evidence"]["pid"] == process.pid
    finally:
        end(process)
