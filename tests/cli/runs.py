"""Runs for the tests of the command line: start one, look at its record and at its cgroup, judge an error line."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

from tests.beds import space
from tests.support import agentbox, wait_for

Done = subprocess.CompletedProcess[str]


def start(*command: str, options: tuple[str, ...] = (), home: Path | None = None) -> str:
    """Start a detached run and give its id."""
    done = agentbox("run", "-d", *options, "--", *command, home=home, check=0)
    return done.stdout.strip()


def run_dir(run: str) -> Path:
    """The run's directory in the test's AGENTBOX_HOME."""
    return Path(os.environ["AGENTBOX_HOME"]) / "runs" / run


def records(run: str, event: str = "") -> list[dict[str, Any]]:
    """The run's records, or those of one event."""
    lines = (run_dir(run) / "manifest.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [record for record in found if event in ("", record["event"])]


def inspect(run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(agentbox("inspect", run, check=0).stdout)
    return found


def row(run: str) -> dict[str, Any]:
    """The run's object of `ps -a --json`."""
    found = json.loads(agentbox("ps", "-a", "--json", check=0).stdout)
    (mine,) = [one for one in found if one["run_id"] == run]
    return dict(mine)


def new_id() -> str:
    """A run id that no other test has: ids are names of cgroups, which all tests on a machine share."""
    return f"t{uuid.uuid4().hex[:10]}"


def parent_box(run: str) -> Path | None:
    """The run's cgroup, asked of the kernel; None if there is none (any more)."""
    mount = space.cgroup2_mount()
    assert mount is not None
    slice_name = "agentbox-" + run.replace("-", "\\x2d") + ".slice"
    for where in space.tree(mount):
        if where.name == slice_name or (where.name == run and where.parent.name == "agentbox"):
            return where
    return None


def pids_of(run: str) -> list[int]:
    """The processes of a run, asked of the kernel."""
    box = parent_box(run)
    return space.members(box) if box else []


def gone(run: str) -> bool:
    """Whether nothing of the run is alive and its cgroup is removed."""
    return parent_box(run) is None


def wait_pids(run: str, count: int) -> list[int]:
    """Wait until the run has this many processes."""
    return wait_for(lambda: pids if len(pids := pids_of(run)) == count else [], what=f"{count} processes")


def one_line(done: Done, *words: str) -> str:
    """The error line: the only one on stderr, ours, no traceback, nothing on stdout; `words` stand in it."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    (line,) = lines
    assert line.startswith("agentbox: "), line
    assert "Traceback" not in line and "unexpected: " not in line, line
    assert line.isprintable() and len(line) < 600, line
    for word in words:
        assert word in line, (word, line)
    return line


def no_runs_left() -> None:
    """No run directory in the test's home, and no cgroup of it (which the leak gate sees as well)."""
    runs = Path(os.environ["AGENTBOX_HOME"]) / "runs"
    assert not runs.exists() or not list(runs.iterdir())
