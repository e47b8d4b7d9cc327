"""A container with a worktree of its own: mounted at its own path, and the working directory there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beds.dockerd import IMAGE, Dockerd
from tests.cli.runs import records
from tests.support import agentbox


@pytest.mark.bed("dockerd")
@pytest.mark.usefixtures("home")
def test_a_container_starts_in_its_worktree(repo: Path, dockerd: Dockerd) -> None:
    command = ("sh", "-c", "pwd; cat a .git; echo new > b")
    options = ("--run-id", "r1", "--image", IMAGE, "--worktree", "--base", "origin/main")
    done = agentbox("run", *options, "--", *command, cwd=repo, check=0)
    tree = repo.parent / "wt-r1-main"
    assert done.stdout.splitlines() == [str(tree), "text", f"gitdir: {repo}/.git/worktrees/wt-r1-main"]
    assert (tree / "b").read_text() == "new\n"
    (started,) = records("r1", "task.started")
    assert started["worktree"] == str(tree)
    dockerd.engine.remove(started["box"]["id"])
