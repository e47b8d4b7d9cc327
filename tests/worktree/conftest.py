"""Real repositories for the tests: a clone with a bare remote, under a git configuration of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandbox.worktree.create import Plan, make, plan

Done = subprocess.CompletedProcess[str]


def run_git(folder: Path, *args: str, check: bool = True, **env: str) -> Done:
    """The git command as a person would run it in `folder`."""
    done = subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, env={**os.environ, **env})
    assert not check or done.returncode == 0, (args, done.stdout, done.stderr)
    return done


def out(folder: Path, *args: str) -> str:
    return run_git(folder, *args).stdout.strip()


def commit(folder: Path, name: str, text: str = "text\n") -> str:
    """Commit one file; its commit's id."""
    (folder / name).write_text(text)
    run_git(folder, "add", "-f", name)
    run_git(folder, "commit", "-q", "-m", f"add {name}")
    return out(folder, "rev-parse", "HEAD")


def hook(folder: Path, name: str, script: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def made(folder: Path, run: str = "r1", task: str = "main", base: str | None = None) -> Plan:
    """A worktree for a task, made the way a start makes it."""
    wanted = plan(str(folder), run, task, base)
    assert make(wanted) == []
    return wanted


def dead(run: str) -> bool:
    return True


@pytest.fixture(autouse=True)
def git_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git configuration of the test's own, with a name; nothing of the person's or the machine's."""
    path = tmp_path / "gitconfig"
    path.write_text("[user]\n\tname = Test\n\temail = test@example.org\n[init]\n\tdefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in [name for name in os.environ if name.startswith(("GIT_DIR", "GIT_INDEX", "GIT_AUTHOR", "GIT_COMM"))]:
        monkeypatch.delenv(name)
    return path


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A clone with one pushed commit; its remote is `remote.git` beside its folder."""
    src = tmp_path / "src"
    src.mkdir()
    run_git(tmp_path, "init", "-q", "--bare", "remote.git")
    run_git(src, "clone", "-q", str(tmp_path / "remote.git"), "repo", check=True)
    repo = src / "repo"
    (repo / ".gitignore").write_text("*.o\n")
    run_git(repo, "add", ".gitignore")
    commit(repo, "a")
    run_git(repo, "push", "-q", "-u", "origin", "main")
    return repo
