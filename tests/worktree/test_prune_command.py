"""`agentbox prune` on worktrees, from end to end: what goes when told, what stays and why, and a run at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runs import inspect, pids_of, run_dir
from tests.support import agentbox, is_alive, wait_for
from tests.worktree.conftest import commit, made, out, run_git

pytestmark = pytest.mark.usefixtures("home")


def prune(*args: str, check: int = 0) -> dict[str, Any]:
    return dict(json.loads(agentbox("prune", "--json", *args, check=check).stdout))


def ended(repo: Path, script: str = "true", run: str = "r1") -> Path:
    """A run with a worktree that has ended; its worktree."""
    agentbox("run", "--run-id", run, "--worktree", "--", "sh", "-c", script, cwd=repo, check=0)
    return repo.parent / f"wt-{run}-main"


def trees(seen: dict[str, Any], part: str = "leftovers") -> list[str]:
    return [one["where"] for one in seen[part] if one["what"] == "worktree"]


def test_one_without_work_is_shown_and_goes_when_told(repo: Path) -> None:
    agentbox("run", "-d", "--run-id", "live", "--worktree", "--", "sleep", "900", cwd=repo, check=0)
    try:
        tree = ended(repo)
        shown = prune("--dry-run")
        assert trees(shown) == [str(tree)] and shown["removed"] == [] and tree.exists()
        assert str(tree) in agentbox("prune", "--dry-run", check=0).stdout
        assert agentbox("prune").returncode == 2 and tree.exists()
        done = prune("--yes")
        assert trees(done, "removed") == [str(tree)] and not tree.exists()
        assert done["did"] == [f"removed {tree}", "removed branch agent/r1/main, all of which is elsewhere"]
        assert out(repo, "branch", "--list", "agent/r1/*") == "" and str(tree) not in out(repo, "worktree", "list")
        assert (repo.parent / "wt-live-main").exists() and len(pids_of("live")) == 1
        assert done["kept"] == [] and prune("--yes")["leftovers"] == []
    finally:
        agentbox("kill", "live", check=0)


def test_the_record_goes_with_its_worktree(repo: Path) -> None:
    tree = ended(repo)
    assert trees(prune("--yes")) == [str(tree)] and run_dir("r1").exists()
    again = ended(repo, run="r2")
    done = prune("--yes", "--older-than", "0s")
    kinds = [(one["what"], one["run_id"]) for one in done["removed"]]
    assert kinds == [("worktree", "r2"), ("record", "r1"), ("record", "r2")] and not again.exists()


WORK = {
    "changed": ("echo two > a", "1 changed"),
    "untracked": ("echo two > new", "1 untracked"),
    "ignored": ("echo two > x.o", "1 ignored"),
    "stashed": ("echo two > a; git stash -q", "1 stash"),
    "unpushed": ("echo two > b; git add b; git commit -qm b", "1 commit in no remote"),
    "detached": ("git checkout -q --detach; echo two > b; git add b; git commit -qm b", "HEAD is on no branch"),
}


def test_whatever_could_be_lost_keeps_it_and_its_record(repo: Path) -> None:
    kept = {name: ended(repo, script, name) for name, (script, _) in WORK.items()}
    seen = prune("--yes", "--older-than", "0s")
    assert seen["removed"] == []
    for name, tree in kept.items():
        (line,) = [line for line in seen["kept"] if line.startswith(f"{tree}: ")]
        assert WORK[name][1] in line
        assert tree.exists() and run_dir(name).exists() and f"agent/{name}/main" in out(repo, "branch", "--list")


def test_ignored_files_go_when_told(repo: Path) -> None:
    tree = ended(repo, "echo two > x.o")
    assert prune("--yes")["removed"] == []
    assert trees(prune("--yes", "--drop-ignored"), "removed") == [str(tree)] and not tree.exists()


def test_commits_that_only_a_kept_one_knows_are_secured(repo: Path) -> None:
    tree = ended(repo, "echo > b; git add b; git commit -qm b; git reset -q --hard HEAD~1; touch new")
    assert prune("--dry-run")["did"] == [] and out(repo, "for-each-ref", "refs/agentbox") == ""
    (line,) = prune("--yes")["did"]
    assert "refs/agentbox/r1/main/" in line and tree.exists()
    assert "refs/agentbox/r1/main/" in out(repo, "for-each-ref", "refs/agentbox")
    assert prune("--yes")["did"] == []


def orphaned(repo: Path) -> int:
    """A run whose launcher is gone and whose command lives; that command's pid."""
    agentbox("run", "-d", "--run-id", "r1", "--worktree", "--", "sleep", "900", cwd=repo, check=0)
    (pid,) = pids_of("r1")
    os.kill(inspect("r1")["task_list"][0]["launcher"]["pid"], signal.SIGKILL)
    return pid


def test_not_while_anything_of_the_run_lives(repo: Path) -> None:
    pid = orphaned(repo)
    try:
        assert prune("--yes")["leftovers"] == [] and is_alive(pid)
        assert (repo.parent / "wt-r1-main").exists()
    finally:
        agentbox("kill", "r1", check=0)


def test_somebody_working_in_it_keeps_it(repo: Path) -> None:
    tree = ended(repo)
    worker = subprocess.Popen(["sleep", "900"], cwd=tree)
    try:
        (line,) = prune("--yes")["kept"]
        assert f"pid {worker.pid} works in it" in line and tree.exists()
    finally:
        worker.kill()
        worker.wait()
    assert trees(prune("--yes"), "removed") == [str(tree)]


def other_home(repo: Path, tmp_path: Path) -> Path:
    agentbox("run", "--run-id", "theirs", "--worktree", "--", "true", cwd=repo, home=tmp_path / "other", check=0)
    return repo.parent / "wt-theirs-main"


def by_hand(repo: Path, tmp_path: Path) -> Path:
    run_git(repo, "worktree", "add", "-q", "-b", "mine", str(tmp_path / "mine"))
    return tmp_path / "mine"


def unrecorded(repo: Path, tmp_path: Path) -> Path:
    return Path(made(repo, "nobody").path)


@pytest.mark.parametrize("make", [other_home, by_hand, unrecorded])
def test_others_in_the_same_repository_are_left_alone(
    repo: Path, tmp_path: Path, make: Callable[[Path, Path], Path]
) -> None:
    theirs, ours = make(repo, tmp_path), ended(repo)
    done = prune("--yes", "--older-than", "0s")
    assert trees(done, "removed") == [str(ours)] and theirs.exists() and str(theirs) not in "".join(done["kept"])


def test_work_that_comes_after_the_look_keeps_it(repo: Path, tmp_path: Path) -> None:
    """Shown as removable, then asked about; what is there at the answer counts."""
    from sandbox.manifest.home import Home
    from sandbox.reconcile.prune import leftovers, remove

    tree, home = ended(repo), Home(os.environ["AGENTBOX_HOME"])
    (found,) = leftovers(home).found
    commit(tree, "late")
    assert "1 commit in no remote" in remove(home, found) and tree.exists()


def test_a_directory_that_is_gone_is_forgotten(repo: Path) -> None:
    import shutil

    tree = ended(repo)
    shutil.rmtree(tree)
    assert prune("--yes")["did"][0] == f"forgot {tree}, whose directory is gone"
    assert str(tree) not in out(repo, "worktree", "list")


def test_a_repository_that_git_cannot_read_is_named(repo: Path) -> None:
    tree = ended(repo)
    (repo / ".git/config").write_text("[broken\n")
    seen = prune("--yes", check=2)
    assert seen["removed"] == [] and str(repo) in seen["not_asked"][0]
    wait_for(tree.exists)
