"""A run that is just starting is never an orphan, however long its launcher takes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.beds import space
from tests.cli.runs import new_id, records, run_dir
from tests.reconcile.looking import in_state, kinds, reconcile
from tests.support import agentbox_argv, agentbox_env, wait_for

pytestmark = pytest.mark.usefixtures("runs")

ROUNDS = 60


def stopped_between(run: str) -> subprocess.Popen[str] | None:
    """A launcher held between the making of the box and the record of the start; None if it was too fast."""
    mount = space.cgroup2_mount()
    assert mount is not None
    box = mount / "agentbox" / run / "main"
    argv = agentbox_argv("run", "--run-id", run, "--backend", "cgroup", "--", "echo", "done")
    launcher = subprocess.Popen(argv, env=agentbox_env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 20
    while not box.exists() and time.monotonic() < deadline:
        pass
    os.kill(launcher.pid, signal.SIGSTOP)
    in_state(launcher.pid, "TZ")
    if box.exists() and not records(run, "task.started"):
        return launcher
    os.kill(launcher.pid, signal.SIGCONT)
    launcher.communicate()
    return None


def test_launcher_held_between_box_and_record() -> None:
    found = ((run, stopped_between(run)) for run in (new_id() for _ in range(ROUNDS)))
    run, launcher = next(((run, process) for run, process in found if process), ("", None))
    assert launcher is not None, "the launcher was never caught between the two"
    try:
        assert kinds("--kill", check=0) == []
        assert kinds("--kill", check=0) == []
        assert (Path(run_dir(run)) / "ctl/control").read_text().startswith("RUN ")
    finally:
        os.kill(launcher.pid, signal.SIGCONT)
    out, _ = launcher.communicate()
    assert (launcher.returncode, out) == (0, "done\n")
    wait_for(lambda: kinds() == [])


def test_runs_that_come_and_go_while_it_looks() -> None:
    """Not one of many short runs is ever a finding, and each ends as it should, with --kill all the time."""
    script = "for n in 1 2 3 4 5 6 7 8; do $0 -m sandbox.cli.main run -- true || exit 1; done"
    argv = ["sh", "-c", script, agentbox_argv()[0]]
    loops = [subprocess.Popen(argv, env=agentbox_env(), stderr=subprocess.DEVNULL) for _ in range(3)]
    seen = []
    while any(loop.poll() is None for loop in loops):
        seen += reconcile("--kill")["findings"]
    assert [loop.wait() for loop in loops] == [0, 0, 0]
    assert seen == []
