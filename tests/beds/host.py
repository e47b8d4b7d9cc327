"""The beds that are no machine of their own: a further pytest on the host, beside the first."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.beds import space
from tests.beds.base import TREE, Job, scratch, tail

HOST, DOCKERD, BESIDE = "host", "dockerd", "host-2"
ON_THE_HOST = (HOST, DOCKERD, BESIDE)
"""The beds whose tests share one machine."""


class HostBed:
    """`missing`: why this machine cannot have what its tests need, or None."""

    def __init__(self, name: str, missing: Callable[[], str | None]) -> None:
        self.name = name
        self.missing = missing

    def start(self, job: Job) -> Beside:
        """Begin the job in the project's own folder."""
        job.tree, job.python = TREE, sys.executable
        return Beside(job)


class Beside:
    """The second pytest; its folder goes with it."""

    def __init__(self, job: Job) -> None:
        self.folder = scratch(job.bed)
        self.reports = self.folder / "reports.jsonl"
        job.write(self.folder)
        with open(self.folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                # A pytest that is interrupted takes down what its fixtures made.
                # Where SIGINT is ignored when it starts, one that comes early would be lost.
                ["env", "--default-signal=INT", "setpriv", "--pdeathsig", "INT", str(self.folder / "run")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=space.clean_env() | {"TESTBED_JOB": str(self.folder), "TESTBED_REPORTS": str(self.reports)},
                start_new_session=True,
            )

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def log(self) -> str:
        """What it printed, and how it ended."""
        status = self.process.poll()
        return tail(self.folder / "log") + ("" if status is None else f"\n(exit status {status})")

    def stop(self) -> None:
        """Interrupt it, and remove its files."""
        if self.alive():
            os.kill(self.process.pid, signal.SIGINT)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
