"""Runs of five processes each, one of them detached, and a watch over them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.beds import space
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

AGENT = "sleep 900 & sleep 900 & sleep 900 & setsid sleep 900 & wait"
PROCESSES = 5


def new_id(name: str = "t") -> str:
    """A run id that no other session uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def backends(bed: str) -> list[str]:
    """The local backends that the bed has."""
    return {"host": ["cgroup"], "dockerd": ["cgroup"], "nspawn-user": ["systemd"]}.get(bed, ["cgroup", "systemd"])


@dataclass
class Fleet:
    """The runs of one home. `parents`: each run's cgroup, `pids`: all their processes."""

    home: Path
    parents: dict[str, Path] = field(default_factory=dict)
    pids: dict[str, list[int]] = field(default_factory=dict)

    def start(self, backend: str = "cgroup", *options: str, command: Sequence[str] = ("sh", "-c", AGENT)) -> str:
        """A detached run, with all its processes there."""
        run = new_id()
        agentbox("run", "-d", "--run-id", run, "--backend", backend, *options, "--", *command, home=self.home, check=0)
        self.seen(run)
        return run

    def seen(self, run: str, processes: int = PROCESSES) -> None:
        """Take a started run in, once its processes are there."""
        (started, *_) = self.records(run, "task.started")
        self.parents[run] = Path(started["box"]["cgroup"]).parent
        wait_for(lambda: len(space.members(self.parents[run])) == processes, what=f"{processes} processes in {run}")
        self.pids[run] = space.members(self.parents[run])

    def records(self, run: str, event: str) -> list[dict[str, Any]]:
        lines = (self.home / "runs" / run / "manifest.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["event"] == event]

    def receipts(self, run: str) -> list[dict[str, Any]]:
        return self.records(run, "stop.receipt")

    def alive(self) -> list[int]:
        return [pid for pids in self.pids.values() for pid in pids if space.is_alive(pid)]

    def dead(self) -> None:
        """Wait until every cgroup says `populated 0`, and assert that each process is gone."""
        for run, parent in self.parents.items():
            wait_for(lambda parent=parent: not space.populated(parent), 30, f"{run} empty")
        assert self.alive() == []

    def stopped(self) -> None:
        """All dead, and recorded: one receipt a run, which names every process and proves the rest."""
        self.dead()
        for run, pids in self.pids.items():
            wait_for(lambda run=run: self.receipts(run), 30, f"receipt of {run}")
            (receipt,) = self.receipts(run)
            assert receipt["proof"] == "empty" and receipt["survivors"] == [], receipt
            assert sorted(one["pid"] for one in receipt["processes"]) == sorted(pids)
            assert receipt["frozen_at"] and receipt["empty_at"] >= receipt["frozen_at"]
        self.gone()

    def gone(self) -> None:
        """Wait for the launchers: they remove the boxes, and write into the home."""
        wait_for(lambda: not any(parent.exists() for parent in self.parents.values()), 30, "boxes removed")

    def end(self) -> None:
        """Whatever a failed test left; and its launchers, which are told by their run's cgroup being gone."""
        with contextlib.suppress(OSError):
            (self.home / "EMERGENCY_STOP").unlink()
        for parent in self.parents.values():
            space.end_tree(parent)


@dataclass
class Watcher:
    """A running `agentbox watch`. `states`: what it told its service manager."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: Path
    states: list[str] = field(default_factory=list)

    def told(self, word: str) -> bool:
        """Has it told the manager a line that begins with `word`?"""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.states += self.socket.recv(4096).decode().splitlines()
        return any(state.startswith(word) for state in self.states)

    def logged(self, word: str) -> bool:
        return word in self.log.read_text()


@contextlib.contextmanager
def watching(home: Path, tmp_path: Path, *options: str, prefix: Sequence[str] = (), **env: str) -> Iterator[Watcher]:
    """A watch that is ready, ended by SIGTERM; it must end cleanly. `prefix`: a command that execs it."""
    name = f"w{uuid.uuid4().hex[:6]}"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / name))
    manager.setblocking(False)
    log = tmp_path / f"{name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [*prefix, *agentbox_argv("watch", *options)],
            env=agentbox_env(home, NOTIFY_SOCKET=str(tmp_path / name), PYTHONFAULTHANDLER="1", **env),
            stdout=out,
            stderr=out,
        )
    watcher = Watcher(process, manager, log)
    try:
        wait_for(lambda: watcher.told("READY=1") or process.poll() is not None, 30, "the watch is ready")
        yield watcher
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        if process.poll() is None:
            process.send_signal(signal.SIGABRT)  # its threads' stacks go to the log
        assert process.wait() == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        manager.close()
    text = log.read_text()
    assert "Traceback" not in text, text


def bare_environment(home: Path) -> dict[str, str]:
    """What cron gives (crontab(5)), and the home; the interpreter finds the project by PYTHONPATH."""
    kept = {key: os.environ[key] for key in (space.MARK,) if key in os.environ}
    path = agentbox_env()["PYTHONPATH"]
    return {"PATH": "/usr/bin:/bin", "AGENTBOX_HOME": str(home), "PYTHONPATH": path, **kept}
