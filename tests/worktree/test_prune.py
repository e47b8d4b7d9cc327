"""What a worktree holds, and that none is removed with anything in it that could be lost."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.errors import AgentboxError
from sandbox.worktree.prune import candidates, remove, secure
from sandbox.worktree.repository import admin_dir, read_owner, write_owner
from sandbox.worktree.state import look, stashes
from tests.support import wait_for
from tests.worktree.conftest import commit, dead, made, out, run_git


@pytest.fixture
def tree(repo: Path) -> Path:
    return Path(made(repo).path)


def common(repo: Path) -> str:
    return str(repo / ".git")


def keep(repo: Path, drop_ignored: bool = False) -> str:
    (one,) = candidates(common(repo), dead, drop_ignored)
    return "; ".join(one.keep)


def refused(repo: Path, *words: str) -> None:
    """Removal is refused in one line that says why, and changes nothing."""
    (one,) = candidates(common(repo), dead)
    assert not one.removable
    before = out(repo, "worktree", "list", "--porcelain"), out(repo, "for-each-ref", "refs/heads")
    with pytest.raises(AgentboxError, match="is kept") as told:
        remove(one, dead)
    line = str(told.value)
    assert "\n" not in line and all(word in line for word in words), line
    assert (out(repo, "worktree", "list", "--porcelain"), out(repo, "for-each-ref", "refs/heads")) == before


def dirty(tree: Path) -> None:
    (tree / "a").write_text("changed")


def untracked(tree: Path) -> None:
    (tree / "new").write_text("x")


def ignored(tree: Path) -> None:
    (tree / "x.o").write_text("x")


def unpushed(tree: Path) -> None:
    commit(tree, "work")


def detached(tree: Path) -> None:
    run_git(tree, "checkout", "-q", "--detach")
    commit(tree, "work")


def stashed(tree: Path) -> None:
    dirty(tree)
    run_git(tree, "stash", "-q")


def stashed_detached(tree: Path) -> None:
    run_git(tree, "checkout", "-q", "--detach")
    stashed(tree)
    run_git(tree, "checkout", "-q", "agent/r1/main")


def merging(tree: Path) -> None:
    run_git(tree, "checkout", "-q", "-b", "agent/r1/other")
    commit(tree, "b")
    run_git(tree, "checkout", "-q", "agent/r1/main")
    run_git(tree, "merge", "-q", "--no-commit", "--no-ff", "agent/r1/other")


@pytest.mark.parametrize(
    ("work", "word"),
    [
        (dirty, "1 changed"),
        (untracked, "1 untracked"),
        (ignored, "1 ignored file (x.o)"),
        (unpushed, "1 commit in no remote"),
        (detached, "HEAD is on no branch"),
        (stashed, "1 stash (stash@{0})"),
        (stashed_detached, "1 stash"),
        (merging, "a merge is under way"),
    ],
)
def test_whatever_could_be_lost_keeps_it(repo: Path, tree: Path, work: Callable[[Path], None], word: str) -> None:
    work(tree)
    refused(repo, word, str(tree))


def test_an_untouched_one_goes_with_its_branch(repo: Path, tree: Path) -> None:
    (one,) = candidates(common(repo), dead)
    assert one.removable
    did = remove(one, dead)
    assert did == [f"removed {tree}", "removed branch agent/r1/main, all of which is elsewhere"]
    assert not tree.exists() and out(repo, "branch", "--list", "agent/*") == ""
    assert remove(one, dead) == [f"{tree} was removed already"]


def test_pushed_or_merged_work_may_go(repo: Path, tree: Path) -> None:
    tip = commit(tree, "work")
    run_git(tree, "push", "-q", "origin", "agent/r1/main")
    (one,) = candidates(common(repo), dead)
    assert one.removable, one.keep
    remove(one, dead)
    assert out(repo, "rev-parse", "origin/agent/r1/main") == tip


def test_ignored_files_go_only_if_asked(repo: Path, tree: Path) -> None:
    ignored(tree)
    assert "ignored" in keep(repo)
    assert keep(repo, drop_ignored=True) == ""
    (one,) = candidates(common(repo), dead)
    remove(one, dead, drop_ignored=True)
    assert not tree.exists()


def test_a_run_that_is_not_proven_dead_keeps_it(repo: Path, tree: Path) -> None:
    for answer, word in ((False, "is not over"), (None, "could not tell")):
        (one,) = candidates(common(repo), lambda run, answer=answer: answer)
        assert word in one.keep[0]
        with pytest.raises(AgentboxError, match=word):
            remove(one, lambda run, answer=answer: answer)
    assert tree.exists()


def test_a_process_that_works_inside_keeps_it(repo: Path, tree: Path) -> None:
    commit(repo, "deep")
    (tree / "deep").mkdir()
    worker = subprocess.Popen(["sleep", "900"], cwd=tree / "deep")
    try:
        wait_for(lambda: f"pid {worker.pid} works in it" in keep(repo))
        refused(repo, f"pid {worker.pid} works in it")
    finally:
        worker.kill()
        worker.wait()
    assert keep(repo) == ""


def test_our_own_working_directory_keeps_it(repo: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    refused(repo, f"pid {os.getpid()} works in it")


def test_commits_that_only_the_log_knows_are_anchored(repo: Path, tree: Path) -> None:
    lost = commit(tree, "lost")
    run_git(tree, "reset", "-q", "--hard", "HEAD~1")
    run_git(tree, "checkout", "-q", "--detach")
    commit(tree, "one")
    two = commit(tree, "two")
    run_git(tree, "checkout", "-q", "agent/r1/main")
    (one,) = candidates(common(repo), dead)
    assert one.removable
    did = remove(one, dead)
    refs = {f"refs/agentbox/r1/main/{sha}" for sha in (lost, two)}
    assert set(out(repo, "for-each-ref", "--format=%(refname)", "refs/agentbox").split()) == refs
    assert sum("kept a commit" in line for line in did) == 2
    run_git(repo, "reflog", "expire", "--expire=now", "--all")
    run_git(repo, "gc", "-q", "--prune=now")
    assert out(repo, "cat-file", "-t", f"{two}~1") == "commit"


def test_a_detached_commit_is_anchored_and_its_worktree_still_kept(repo: Path, tree: Path) -> None:
    detached(tree)
    (one,) = candidates(common(repo), dead)
    assert secure(one) == [f"refs/agentbox/r1/main/{out(tree, 'rev-parse', 'HEAD')}"]
    assert secure(one) == []
    refused(repo, "HEAD is on no branch")


def test_one_whose_directory_is_gone_is_forgotten_if_it_is_ours(repo: Path, tree: Path) -> None:
    tip = commit(tree, "work")
    shutil.rmtree(tree)
    run_git(repo, "worktree", "prune")
    (one,) = candidates(common(repo), dead)  # it was locked
    assert one.keep == [] and one.state.exists is False
    assert remove(one, dead) == [f"forgot {tree}, whose directory is gone", "kept branch agent/r1/main"]
    assert out(repo, "rev-parse", "agent/r1/main") == tip
    assert len(out(repo, "worktree", "list").splitlines()) == 1


def test_staged_work_of_one_whose_directory_is_gone_is_kept(repo: Path, tree: Path) -> None:
    untracked(tree)
    run_git(tree, "add", "new")
    shutil.rmtree(tree)
    refused(repo, "its index holds changes")


def test_one_that_may_only_be_unmounted_is_kept(repo: Path, tree: Path) -> None:
    tree.rename(tree.parent.parent / "elsewhere")
    git_dir = admin_dir(common(repo), str(tree))
    owner = read_owner(git_dir) if git_dir else None
    assert git_dir and owner
    write_owner(git_dir, type(owner)(**{**vars(owner), "parent_inode": owner.parent_inode + 1}))
    refused(repo, "perhaps it is not mounted")


def test_a_lock_of_somebody_elses_is_reported_only(repo: Path, tree: Path) -> None:
    run_git(repo, "worktree", "add", "-q", "-b", "usb", "../usb")
    run_git(repo, "worktree", "lock", "--reason", "on a stick", "../usb")
    assert [one.path for one in candidates(common(repo), dead)] == [str(tree)]  # a person's own is none of ours
    shutil.rmtree(repo.parent / "usb")
    (one,) = [one for one in candidates(common(repo), dead) if one.foreign]
    assert "on a stick" in one.keep[0]
    with pytest.raises(AgentboxError, match="on a stick"):
        remove(one, dead)
    run_git(repo, "worktree", "unlock", str(tree))
    run_git(repo, "worktree", "lock", "--reason", "mine now", str(tree))
    ours = next(one for one in candidates(common(repo), dead) if not one.foreign)
    assert "mine now" in ours.keep[0]


def test_nested_ones_come_first(repo: Path, tree: Path) -> None:
    (tree / "x.o").mkdir()
    run_git(repo, "config", "core.excludesFile", "/dev/null")
    inner = made(repo, task="inner")
    run_git(repo, "worktree", "unlock", inner.path)
    run_git(repo, "worktree", "move", inner.path, str(tree / "x.o/inner"))
    found = candidates(common(repo), dead)
    assert [one.task_id for one in found] == ["inner", "main"]
    assert found[0].removable and not found[1].removable
    remove(found[0], dead)
    (one,) = candidates(common(repo), dead)
    assert one.removable or one.keep == ["1 ignored file (x.o/)"], one.keep


def with_submodule(repo: Path, tmp_path: Path) -> tuple[Path, Path]:
    run_git(tmp_path, "init", "-q", "super")
    top = tmp_path / "super"
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "remote.git"), "lib")
    run_git(top, *add)
    run_git(top, "commit", "-q", "-m", "with a submodule")
    return top, Path(made(top).path)


def test_submodules_are_looked_into_before_force_is_used(repo: Path, tmp_path: Path) -> None:
    top, tree = with_submodule(repo, tmp_path)
    (tree / "lib/x.o").write_text("x")
    refused(top, "submodule lib has 1 changed, untracked or ignored")
    (tree / "lib/x.o").unlink()
    commit(tree / "lib", "work")
    run_git(tree / "lib", "reset", "-q", "--hard", "HEAD~1")
    refused(top, "submodule lib has 1 commit not pushed")
    run_git(tree / "lib", "reflog", "expire", "--expire=now", "--all")
    (one,) = candidates(common(top), dead)
    assert one.removable, one.keep
    assert remove(one, dead)[0] == f"removed {tree} (with --force: it has submodules, which hold nothing of their own)"
    assert (top / "lib/a").exists() and out(top / "lib", "status", "--porcelain") == ""


def half_made(tree: Path, repo: Path) -> None:
    """As a launcher that was killed in the middle of the checkout leaves it."""
    git_dir = admin_dir(common(repo), str(tree))
    owner = read_owner(git_dir) if git_dir else None
    assert git_dir and owner
    write_owner(git_dir, type(owner)(**{**vars(owner), "ready": False}))
    Path(git_dir, "index").unlink()
    Path(git_dir, "index.lock").touch()


def test_a_half_made_one_goes_if_all_in_it_is_in_its_commit(repo: Path, tree: Path) -> None:
    half_made(tree, repo)
    (tree / ".gitignore").unlink()
    (one,) = candidates(common(repo), dead)
    assert one.removable, one.keep
    assert remove(one, dead)[0].endswith("(with --force: it was never made whole)")
    assert not tree.exists()


def test_a_half_made_one_with_something_else_in_it_stays(repo: Path, tree: Path) -> None:
    half_made(tree, repo)
    (tree / "x.o").write_text("somebody's")
    refused(repo)
    assert (tree / "x.o").exists()


def test_a_directory_that_is_no_worktree_any_more_is_untouched(repo: Path, tree: Path) -> None:
    (tree / ".git").unlink()
    refused(repo, "no worktree of git's")
    state = look("r1", "main", str(tree), "agent/r1/main", common(repo))
    assert (state.exists, state.dirty, state.clean) == (True, None, None)


def test_a_git_file_that_names_another_worktree_is_not_believed(repo: Path, tree: Path) -> None:
    other = made(repo, task="other")
    (tree / ".git").write_text((Path(other.path) / ".git").read_text())
    assert look("r1", "main", str(tree), "agent/r1/main", common(repo)).dirty is None


def test_stashes_of_others_are_not_the_tasks(repo: Path, tree: Path) -> None:
    (repo / "a").write_text("the person's on agent/r1/main: x")
    run_git(repo, "stash", "push", "-q", "-m", "on agent/r1/main: mine")
    state = look("r1", "main", str(tree), "agent/r1/main", common(repo))
    assert state.stashes == [] and len(stashes(str(repo))) == 1
    stashed(tree)
    state = look("r1", "main", str(tree), "agent/r1/main", common(repo))
    assert state.stashes is not None and [one.name for one in state.stashes] == ["stash@{0}"]
