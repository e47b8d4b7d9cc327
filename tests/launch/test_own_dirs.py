"""`run --own-dirs`: no job goes to a daemon of somebody else's; the folders go with the run's record, not before."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.runs import new_id, one_line, records, run_dir
from tests.stop.stage import BACKEND
from tests.support import agentbox, agentbox_argv, is_alive, wait_for

NAMES = {"TMPDIR": "tmp", "XDG_RUNTIME_DIR": "run", "GRADLE_USER_HOME": "gradle"}
SHARED = """
import os, socket, sys, threading
path, told = os.environ["XDG_RUNTIME_DIR"] + "/shared.sock", sys.argv[1]
with socket.socket(socket.AF_UNIX) as one:
    try:
        one.connect(path)
    except OSError:
        daemon = socket.socket(socket.AF_UNIX)
        daemon.bind(path)
        daemon.listen()
        if os.fork() == 0:
            os.setsid()
            while True:
                daemon.accept()[0].sendall(str(os.getpid()).encode())
        one.connect(path)
    pid = one.recv(100).decode()
with open(told + ".new", "w") as file:
    file.write(pid)
os.rename(told + ".new", told)
"""
"""A client of a daemon that is started on demand and found by its socket; says whose work it was."""


def told(path: Path) -> dict[str, str]:
    """What `printenv` wrote there, once it is whole."""
    wait_for(lambda: path.exists() and path.read_text().endswith("end\n"), 30)
    return {name: value for name, _, value in (line.partition("=") for line in path.read_text().splitlines())}


def printing(path: Path) -> list[str]:
    return ["sh", "-c", f"{{ printenv; echo end; }} > {shlex.quote(str(path))}; exec sleep 900"]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, as a person's is."""
    with tempfile.TemporaryDirectory(prefix="ab", dir="/tmp") as folder:
        monkeypatch.setenv("AGENTBOX_HOME", f"{folder}/h")
        yield Path(folder, "h")


@pytest.fixture
def run(home: Path) -> Iterator[str]:
    run_id = new_id()
    yield run_id
    agentbox("kill", run_id)


@pytest.mark.bed("host", "nspawn-user")
def test_all_tasks_have_them(home: Path, run: str, bed: str, tmp_path: Path) -> None:
    """Spawned from outside and from inside; what the person names wins; another run has none of it."""
    inside = agentbox_argv("spawn", "-d", run, "--task", "inside", "--", *printing(tmp_path / "inside"))
    main = ["sh", "-c", f"{shlex.join(inside)}; {shlex.join(printing(tmp_path / 'main'))}"]
    agentbox("run", "-d", "--own-dirs", "--backend", BACKEND[bed], "--run-id", run, "--", *main, check=0)
    agentbox("spawn", "-d", run, "--task", "out", "--", *printing(tmp_path / "out"), check=0)
    named = ("--env", "TMPDIR=/elsewhere", "--task", "named")
    agentbox("spawn", "-d", run, *named, "--", *printing(tmp_path / "named"), check=0)
    wanted = {variable: f"{run_dir(run)}/{name}" for variable, name in NAMES.items()}
    for task in ("main", "inside", "out"):
        assert wanted.items() <= told(tmp_path / task).items(), task
    assert {**wanted, "TMPDIR": "/elsewhere"}.items() <= told(tmp_path / "named").items()
    for path in wanted.values():
        seen = os.stat(path)
        assert (seen.st_mode & 0o7777, seen.st_uid) == (0o700, os.geteuid())
    assert records(run, "run.created")[0]["own_dirs"] is True
    agentbox("kill", run, check=0)
    other = json.loads(agentbox("run", "--", "sh", "-c", "printenv TMPDIR || echo 0", env={"TMPDIR": "1"}).stdout)
    assert other == 1


def test_no_job_goes_to_a_daemon_outside(home: Path, tmp_path: Path) -> None:
    """Without the option the run's job is done outside, and outlives its kill; with it, it is done in the box."""
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    env = {"XDG_RUNTIME_DIR": str(runtime)}
    subprocess.run([sys.executable, "-c", SHARED, str(tmp_path / "0")], env={**os.environ, **env}, check=True)
    outside = int((tmp_path / "0").read_text())
    try:
        served = {}
        for option in ("--no-hooks", "--own-dirs"):
            run, mark = new_id(), tmp_path / option
            job = f"{shlex.join([sys.executable, '-c', SHARED, str(mark)])}; exec sleep 900"
            agentbox("run", "-d", option, "--run-id", run, "--", "sh", "-c", job, env=env, check=0)
            wait_for(mark.exists, 30)
            served[option] = int(mark.read_text())
            (shown,) = json.loads(agentbox("kill", run, "--dry-run", "--json", check=0).stdout)
            within = {one["pid"] for one in shown["processes"]}
            assert (served[option] in within) == (option == "--own-dirs")
            agentbox("kill", run, check=0)
        assert served["--no-hooks"] == outside
        assert not is_alive(served["--own-dirs"])
        assert is_alive(outside)
    finally:
        os.kill(outside, 9)


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    """And the longest that is allowed holds one, with what programs add to it."""
    run = "r"
    spare = 75 - len(f"{tmp_path}//runs/{run}/tmp")
    if spare < 1:
        pytest.skip("the test's own folder is too long")
    fits, too_long = tmp_path / ("h" * spare), tmp_path / ("h" * (spare + 1))
    done = agentbox("run", "--own-dirs", "--run-id", run, "--", "true", home=too_long, check=125)
    one_line(done, "1 byte too long", "shorter --run-id or AGENTBOX_HOME")
    assert not (too_long / "runs" / run).exists()
    agentbox("run", "--own-dirs", "--run-id", run, "--", "true", home=fits, check=0)
    longest = f"{fits}/runs/{run}/tmp/pymp-{'x' * 8}/listener-{'x' * 8}"
    os.mkdir(os.path.dirname(longest))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(longest)
    assert len(longest) == 107


def test_not_for_containers(home: Path) -> None:
    done = agentbox("run", "--own-dirs", "--image", "any", "--", "true", check=125)
    one_line(done, "--own-dirs is not for containers", "leave it or --image out")
    assert not home.exists()


@pytest.mark.bed("host", "nspawn-user")
def test_they_go_with_the_record_and_not_while_anything_lives(home: Path, run: str) -> None:
    fill = 'mkdir -p "$TMPDIR/a/b"; touch "$TMPDIR/a/b/c"; chmod 500 "$TMPDIR/a/b" "$TMPDIR/a"; exec sleep 900'
    agentbox("run", "-d", "--own-dirs", "--run-id", run, "--", "sh", "-c", fill, check=0)
    kept = run_dir(run) / "tmp/a/b/c"
    wait_for(lambda: kept.exists() and not kept.parent.parent.stat().st_mode & 0o200)
    prune = ("prune", "--yes", "--older-than", "0s")
    agentbox(*prune)
    assert kept.exists()
    agentbox("kill", run, check=0)
    agentbox("wait", run)
    assert kept.exists(), "a stop removes nothing"
    agentbox(*prune)
    assert not run_dir(run).exists()
