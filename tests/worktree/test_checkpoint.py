"""Checkpoints: whatever stands in the way of a commit, the work is saved and nothing of it is changed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sandbox.errors import AgentboxError
from sandbox.worktree import locks
from sandbox.worktree.branches import abandon
from sandbox.worktree.checkpoint import checkpoint
from sandbox.worktree.state import changed_files
from tests.support import wait_for
from tests.worktree.conftest import commit, hook, made, out, run_git


@pytest.fixture
def tree(repo: Path) -> Path:
    return Path(made(repo).path)


def test_all_changes_are_committed_with_hooks_and_signing_off(repo: Path, tree: Path) -> None:
    for name in ("pre-commit", "commit-msg", "prepare-commit-msg", "post-commit"):
        hook(repo / ".git/hooks", name, "echo no > ../hook-ran; exit 1")
    run_git(repo, "config", "commit.gpgSign", "true")
    run_git(repo, "config", "gpg.program", "/nonexistent")
    run_git(repo, "config", "commit.cleanup", "scissors")
    (tree / "new file").write_text("x")
    (tree / "a").unlink()
    (tree / "deep").mkdir()
    (tree / "deep/b").write_text("y")
    done = checkpoint(str(tree / "deep"), "parsed\nthe  input", "main")
    assert done.commit == out(tree, "rev-parse", "HEAD")
    assert done.ref == "agent/r1/main"
    assert out(tree, "log", "-1", "--format=%B") == "wip: main parsed the input"
    assert out(tree, "show", "--name-status", "--format=", "HEAD").splitlines() == ["D\ta", "A\tdeep/b", "A\tnew file"]
    assert not (repo.parent / "hook-ran").exists()
    assert changed_files(str(tree)) == ["a", "deep/b", "new file"]


def test_nothing_to_commit_makes_no_commit(tree: Path) -> None:
    before = out(tree, "rev-parse", "HEAD")
    (tree / "x.o").write_text("built")
    done = checkpoint(str(tree))
    assert (done.commit, done.ref, done.ignored) == (None, None, 1)
    assert out(tree, "rev-parse", "HEAD") == before


def test_steps_are_counted(tree: Path) -> None:
    for n in (1, 2, 3):
        (tree / "n").write_text(str(n))
        assert checkpoint(str(tree)).message == f"wip: main {n}"


def test_a_missing_identity_is_no_reason(tree: Path, git_config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git_config.write_text("[user]\n\tuseConfigOnly = true\n")
    monkeypatch.delenv("EMAIL", raising=False)
    (tree / "n").write_text("x")
    assert checkpoint(str(tree)).commit
    assert out(tree, "log", "-1", "--format=%ae") == "agent@agentbox.invalid"


def test_large_new_files_stay_where_they_are(tree: Path) -> None:
    (tree / "core dump").write_bytes(b"x" * 5000)
    (tree / "small").write_text("x")
    done = checkpoint(str(tree), large=4000)
    assert done.left == ["core dump"] and (tree / "core dump").exists()
    assert out(tree, "show", "--name-only", "--format=", "HEAD") == "small"
    again = checkpoint(str(tree), large=4000)
    assert again.commit is None and again.left == ["core dump"]


def test_a_conflict_is_saved_beside_the_branch_and_left_as_it_is(repo: Path, tree: Path) -> None:
    commit(repo, "a", "theirs\n")
    mine = commit(tree, "a", "mine\n")
    assert run_git(tree, "merge", "main", check=False).returncode != 0
    (tree / "new").write_text("n")
    before = out(tree, "status", "--porcelain"), out(tree, "ls-files", "-s")
    done = checkpoint(str(tree), "half way")
    assert "merge is under way" in done.note
    assert done.ref == f"refs/agentbox/r1/main/{done.commit}"
    assert (out(tree, "status", "--porcelain"), out(tree, "ls-files", "-s")) == before
    assert out(tree, "rev-parse", "HEAD") == mine
    assert "<<<<<<<" in out(tree, "show", f"{done.commit}:a") and out(tree, "show", f"{done.commit}:new") == "n"
    run_git(tree, "merge", "--abort")


def test_on_a_detached_head_the_commit_is_kept_by_a_ref(tree: Path) -> None:
    run_git(tree, "checkout", "-q", "--detach")
    (tree / "n").write_text("x")
    done = checkpoint(str(tree))
    assert done.ref and out(tree, "rev-parse", done.ref) == done.commit
    run_git(tree, "checkout", "-q", "agent/r1/main")
    assert out(tree, "for-each-ref", "--contains", str(done.commit), "--format=%(refname)") == done.ref


def test_other_checkouts_are_never_committed_to(repo: Path) -> None:
    (repo / "n").write_text("x")
    run_git(repo, "worktree", "add", "-q", "-b", "mine", "../mine")
    for folder in (repo, repo.parent / "mine"):
        (folder / "n").write_text("x")
        with pytest.raises(AgentboxError, match="not made for a task"):
            checkpoint(str(folder))
    with pytest.raises(AgentboxError, match="no git worktree"):
        checkpoint(str(repo.parent))


def git_dir(tree: Path) -> Path:
    return Path(out(tree, "rev-parse", "--absolute-git-dir"))


def test_a_lock_left_by_a_killed_git_is_removed_if_it_is_ours(repo: Path, tree: Path) -> None:
    left = [git_dir(tree) / "index.lock", git_dir(tree) / "HEAD.lock", repo / ".git/refs/heads/agent/r1/main.lock"]
    for path in (*left, repo / ".git/index.lock"):
        path.write_text("")
    (tree / "n").write_text("x")
    done = checkpoint(str(tree))
    assert done.commit and done.unlocked == [str(path) for path in left]
    assert (repo / ".git/index.lock").exists()  # the person's own
    (repo / ".git/index.lock").unlink()


def test_a_lock_of_a_git_that_lives_stays(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.2)
    monkeypatch.setattr(locks.clear, "__defaults__", (0.2,))
    (tree / "n").write_text("x")
    editor = tree.parent / "editor.sh"
    hook(tree.parent, "editor.sh", f"touch {tree.parent}/editing; exec sleep 600")
    run_git(tree, "add", "n")
    working = subprocess.Popen(["git", "commit"], cwd=tree, env={**os.environ, "GIT_EDITOR": str(editor)})
    try:
        wait_for((tree.parent / "editing").exists)
        lock = git_dir(tree) / "index.lock"
        lock.touch()
        with pytest.raises(AgentboxError, match="git is at work"):
            checkpoint(str(tree))
        assert lock.exists()
    finally:
        children = Path(f"/proc/{working.pid}/task/{working.pid}/children").read_text().split()
        for pid in (*map(int, children), working.pid):
            os.kill(pid, 9)
        working.wait()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in children))
    assert checkpoint(str(tree)).commit


def test_an_unreadable_name_and_a_nested_repository_do_not_keep_the_rest_out(tree: Path) -> None:
    run_git(tree, "init", "-q", "nested")
    (tree / "n").write_text("x")
    (tree / os.fsdecode(b"caf\xe9")).write_text("x")
    done = checkpoint(str(tree))
    assert done.commit
    names = run_git(tree, "-c", "core.quotePath=true", "show", "--name-only", "--format=", "HEAD").stdout.splitlines()
    assert names == [r'"caf\351"', "n"]


def test_abandon_commits_what_is_left_and_renames_the_branch(repo: Path, tree: Path) -> None:
    (tree / "n").write_text("x")
    assert abandon(str(tree), "r1", "main") == "abandoned/r1/main"
    assert out(repo, "branch", "--list", "a*").split()[-1] == "abandoned/r1/main"
    assert out(tree, "symbolic-ref", "HEAD") == "refs/heads/abandoned/r1/main"
    assert out(repo, "log", "-1", "--format=%s", "abandoned/r1/main") == "wip: main dropped"
    assert abandon(str(tree), "r1", "main") == "abandoned/r1/main"
    run_git(repo, "branch", "agent/r1/main")
    assert abandon(str(tree), "r1", "main") == "abandoned/r1/main-2"
    with pytest.raises(AgentboxError):
        abandon(str(tree), "r1", "other")


def test_abandon_while_a_rebase_is_under_way_keeps_both_names(repo: Path, tree: Path) -> None:
    tip = commit(tree, "a", "mine\n")
    commit(repo, "a", "theirs\n")
    assert run_git(tree, "rebase", "main", check=False).returncode != 0
    assert abandon(str(tree), "r1", "main") == "abandoned/r1/main"
    assert out(repo, "rev-parse", "abandoned/r1/main") == tip
