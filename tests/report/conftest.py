"""A deployment in a run, and its report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.manifest.home import Home
from sandbox.report.gather import gather
from sandbox.report.model import plain
from tests.beds.base import TREE
from tests.stop.stage import BACKEND, new_id
from tests.support import agentbox, wait_for

GATE = str(TREE / "sandbox" / "harness" / "gate.sh")
DEPLOY = str(TREE / "tests" / "report" / "deploy.sh")


def report(run: str) -> dict[str, Any]:
    """What `agentbox report --json` gives, without the process for it."""
    return dict(plain(gather(Home(os.environ["AGENTBOX_HOME"]), run, time.time())))


class Deploy:
    """A detached run of deploy.sh in `folder`."""

    def __init__(self, bed: str, folder: Path) -> None:
        self.run, self.folder, self.bed = new_id("dep"), folder, bed

    def start(self, *steps: str, options: tuple[str, ...] = (), ready: bool = True) -> None:
        given = ["-d", "--run-id", self.run, "--backend", BACKEND[self.bed], *options]
        agentbox("run", *given, "--", "sh", DEPLOY, GATE, *steps, cwd=self.folder, check=0)
        if ready:
            wait_for((self.folder / "ready").exists, 60, "the deployment is not ready")

    def files(self, suffix: str) -> set[str]:
        """The steps that have such a file, by the deployment itself."""
        return {path.name.removesuffix(suffix) for path in self.folder.glob(f"*{suffix}")}

    def kill(self, *args: str) -> None:
        agentbox("kill", self.run, *args, check=0)
        agentbox("wait", self.run)

    def report(self) -> dict[str, Any]:
        return report(self.run)


@pytest.fixture
def deploy(home: Path, bed: str, tmp_path: Path) -> Iterator[Deploy]:
    folder = tmp_path / "deploy"
    folder.mkdir()
    one = Deploy(bed, folder)
    yield one
    agentbox("kill", one.run)
    agentbox("wait", one.run)
