"""One backend with a private home: boxes are made, filled and ended in it, and all of them at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from sandbox.boxes.base import Backend, Box, BoxSpec, Command, Limits
from sandbox.boxes.registry import local_backends
from sandbox.kernel.spawn import Child, Step

SECONDS = 20.0
SLEEP = ["sleep", "900"]


def python(code: str) -> list[str]:
    """The command line of a Python program."""
    return [sys.executable, "-c", code]


class Scene:
    """`backend` is the one under test. What `create` and `start` make ends with `close`."""

    def __init__(self, make: Callable[[str], Backend], home: Path) -> None:
        self.make = make
        self.home = home
        self.backend = make(str(home))
        self.run_id = f"t{uuid.uuid4().hex[:10]}"
        self.runs: dict[str, None] = {}
        self.children: list[Child] = []

    def spec(self, task: str = "main", run_id: str = "", **more: Limits) -> BoxSpec:
        """A box of the scene's own run, or of another."""
        run_id = run_id or self.run_id
        folder = self.home / "runs" / run_id
        folder.mkdir(parents=True, exist_ok=True)
        self.runs[run_id] = None
        return BoxSpec(str(self.home), run_id, task, str(folder), **more)

    def create(self, task: str = "main", run_id: str = "", **more: Limits) -> Box:
        """An empty box with every limit that was asked for."""
        box, given_up = self.backend.create(self.spec(task, run_id, **more))
        assert given_up == []
        return box

    def start(self, box: Box, argv: list[str], steps: tuple[Step, ...] = ()) -> Child:
        """A child in `box`, at its barrier."""
        command = Command([os.fsencode(word) for word in argv], dict(os.environb), steps)
        child = self.backend.start(box, command, lambda: None)
        self.children.append(child)
        return child

    def run(self, argv: list[str], task: str = "main", run_id: str = "") -> tuple[Box, Child]:
        """A box with a command that runs in it."""
        box = self.create(task, run_id)
        child = self.start(box, argv)
        child.release()
        return box, child

    def parent(self, run_id: str = "") -> Box:
        """The run's only parent box."""
        (box,) = self.backend.parents(run_id or self.run_id)
        return box

    def end(self, box: Box) -> str:
        """Kill all in a box, with its proof."""
        return self.backend.kill(box, deadline())

    def close(self) -> None:
        """End and remove all runs, reap all children."""
        for run_id in self.runs:
            for box in self.backend.parents(run_id):
                assert self.backend.kill(box, deadline()) == "empty"
                self.backend.thaw(box)
        for child in self.children:
            child.abandon()
        # A container's directory is the cgroup backend's to find once its container is gone: as a stop does it.
        backends = [self.backend, *(one for one in local_backends(str(self.home)) if one.name != self.backend.name)]
        for run_id in self.runs:
            for backend in backends:
                for box in backend.parents(run_id):
                    assert backend.destroy(box)
                assert backend.parents(run_id) == []


def deadline(seconds: float = SECONDS) -> float:
    """`seconds` from now, on the monotonic clock."""
    return time.monotonic() + seconds


def ended_by(child: Child) -> int:
    """Reap the child: what it died of as a negative number, else its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def forked(act: Callable[[], None]) -> int:
    """Run `act` in a child of this process that never returns; its pid. It ends with SIGKILL alone."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            act()
            while True:
                signal.pause()
        os._exit(99)
    return pid
