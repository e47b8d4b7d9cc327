"""Making worktrees: many at a time, from every kind of repository, and nothing left of one that failed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.errors import AgentboxError
from sandbox.worktree import create
from sandbox.worktree.create import make, plan, undo
from sandbox.worktree.repository import discover, listed, locked
from tests.support import agentbox_env, wait_for
from tests.worktree.conftest import commit, hook, made, out, run_git

MAKER = "import sys; from sandbox.worktree.create import make, plan; make(plan(*sys.argv[1:5]))"


def wt(repo: Path, run: str = "r1", task: str = "main") -> Path:
    return repo.parent / f"wt-{run}-{task}"


@pytest.mark.parametrize("round_", range(10))
def test_twelve_at_a_time_from_a_remote_branch_all_exist(repo: Path, round_: int) -> None:
    before = (repo / ".git/config").read_text()
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(repo), "r1", f"t{n}", "origin/main"],
            env=agentbox_env(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(12)
    ]
    errors = [maker.communicate()[1] for maker in makers]
    assert [maker.returncode for maker in makers] == [0] * 12, errors
    for n in range(12):
        tree = wt(repo, "r1", f"t{n}")
        assert (tree / "a").read_text() == "text\n"
        assert out(tree, "symbolic-ref", "HEAD") == f"refs/heads/agent/r1/t{n}"
        assert run_git(tree, "rev-parse", "@{upstream}", check=False).returncode != 0  # nothing is tracked
        assert out(tree, "status", "--porcelain") == ""
    after = (repo / ".git/config").read_text()
    assert after == before + "[extensions]\n\tworktreeConfig = true\n"


def test_the_base_is_head_where_one_stands_or_what_is_named(repo: Path) -> None:
    first = out(repo, "rev-parse", "HEAD")
    second = commit(repo, "b")
    assert made(repo, task="t1").base == second
    assert made(repo, task="t2", base="origin/main").base == first
    assert not (wt(repo, task="t2") / "b").exists()
    (repo / "sub").mkdir()
    assert made(repo / "sub", task="t3").path == str(wt(repo, task="t3"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("r1", "t", "nope"), ("nope", "no commit", "--base")),
        (("r1", "t", "--force"), ("--force", "no commit")),
        (("r1", "a..b", None), ("a..b", "branch name")),
        (("r1", "a.lock", None), ("a.lock", "branch name")),
    ],
)
def test_what_git_would_refuse_is_told_before_anything_is_made(
    repo: Path, args: tuple[str, str, str | None], words: tuple[str, ...]
) -> None:
    before = out(repo, "for-each-ref"), (repo / ".git/config").read_text()
    with pytest.raises(AgentboxError) as told:
        plan(str(repo), *args)
    assert all(word in str(told.value) for word in words), told.value
    assert (out(repo, "for-each-ref"), (repo / ".git/config").read_text()) == before


def test_no_repository_no_commit_and_a_deleted_directory_are_one_line(tmp_path: Path) -> None:
    for folder, words in ((tmp_path, "in no git repository"), (None, "was deleted"), (tmp_path / "x", "not exist")):
        with pytest.raises(AgentboxError, match=words):
            plan(str(folder) if folder else None, "r1", "t", None)
    run_git(tmp_path, "init", "-q", "empty")
    with pytest.raises(AgentboxError, match="HEAD names no commit"):
        plan(str(tmp_path / "empty"), "r1", "t", None)


def test_a_branch_that_is_held_names_its_holder_and_stays(repo: Path) -> None:
    made(repo)
    with pytest.raises(AgentboxError, match=r"agent/r1/main is checked out at .*wt-r1-main by run r1 \(exited\)"):
        plan(str(repo), "r1", "main", None, lambda run: "exited")
    run_git(repo, "branch", "agent/r1/t")
    with pytest.raises(AgentboxError, match="in no worktree"):
        plan(str(repo), "r1", "t", None)
    assert out(repo, "rev-parse", "agent/r1/t")


def test_a_path_that_is_taken_is_left_alone(repo: Path) -> None:
    wt(repo).mkdir()
    (wt(repo) / "mine").write_text("x")
    with pytest.raises(AgentboxError, match="exists"):
        plan(str(repo), "r1", "main", None)
    assert (wt(repo) / "mine").exists()


def test_only_the_branch_of_the_failed_attempt_is_deleted(repo: Path) -> None:
    wanted = plan(str(repo), "r1", "main", None)
    os.chmod(repo.parent, 0o755)
    (repo.parent / "wt-r1-main").write_text("in the way")  # after the look, before the making
    with pytest.raises(AgentboxError, match="exists"):
        make(wanted)
    assert out(repo, "branch", "--list", "agent/*") == ""
    (repo.parent / "wt-r1-main").unlink()
    run_git(repo, "branch", "agent/r1/main")  # somebody else's, made meanwhile
    with pytest.raises(AgentboxError, match="in no worktree"):
        make(wanted)
    assert out(repo, "branch", "--list", "agent/*") == "agent/r1/main"
    assert not wt(repo).exists() and len(listed(str(repo / ".git"))) == 1


def test_a_branch_named_agent_is_in_the_way_and_said_so(repo: Path) -> None:
    run_git(repo, "branch", "agent")
    with pytest.raises(AgentboxError, match="agent") as told:
        make(plan(str(repo), "r1", "main", None))
    assert "\n" not in str(told.value)
    assert not wt(repo).exists() and out(repo, "branch", "--list", "agent*") == "agent"


def test_a_stop_ends_the_making_and_leaves_nothing(repo: Path) -> None:
    wanted = plan(str(repo), "r1", "main", None)
    asked = iter([False, *[True] * 1000])
    hang = repo / "hang.sh"
    hang.write_text("#!/bin/sh\nexec sleep 600\n")
    hang.chmod(0o755)
    run_git(repo, "config", "filter.slow.smudge", str(hang))
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("a filter=slow\n")
    with pytest.raises(AgentboxError, match="a stop was asked for"):
        make(wanted, lambda: next(asked))
    assert not wt(repo).exists()
    assert out(repo, "branch", "--list", "agent/*") == ""
    assert len(listed(str(repo / ".git"))) == 1


def test_undo_keeps_what_somebody_has_put_there(repo: Path) -> None:
    wanted = made(repo)
    (wt(repo) / "precious").write_text("x")
    assert "is kept" in undo(wanted)
    assert (wt(repo) / "precious").exists()
    assert listed(str(repo / ".git"))[1].owner == ("r1", "main")  # still locked as ours
    (wt(repo) / "precious").unlink()
    commit(wt(repo), "work")
    assert "branch agent/r1/main is kept" in undo(wanted)
    assert out(repo, "log", "-1", "--format=%s", "agent/r1/main") == "add work"


def test_a_bare_repository_and_one_that_was_bare_stay_what_they_are(repo: Path, tmp_path: Path) -> None:
    bare = tmp_path / "remote.git"
    tree = Path(made(bare).path)
    assert tree == tmp_path / "wt-r1-main" and (tree / "a").exists()
    assert out(bare, "rev-parse", "--is-bare-repository") == "true"
    assert out(tree, "rev-parse", "--is-bare-repository") == "false"
    assert out(tree, "status", "--porcelain") == ""
    commit(repo, "b")
    run_git(repo, "push", "-q", "origin", "main")
    assert out(bare, "log", "-1", "--format=%s", "main") == "add b"


def test_worktrees_of_a_worktree_stand_beside_the_main_one(repo: Path) -> None:
    first = Path(made(repo, task="t1").path)
    tip = commit(first, "b")
    second = made(first, task="t2")
    assert second.path == str(wt(repo, task="t2")) and second.base == tip
    assert discover(second.path) == discover(str(repo))


def test_a_worktree_of_a_submodule_leaves_the_submodule_working(repo: Path, tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q", "super")
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "remote.git"), "sub")
    run_git(tmp_path / "super", *add)
    sub = tmp_path / "super/sub"
    tree = Path(made(sub).path)
    assert tree == tmp_path / "super/wt-r1-main" and (tree / "a").exists()
    assert out(sub, "rev-parse", "--show-toplevel") == str(sub)
    assert out(sub, "status", "--porcelain") == ""


def test_submodules_are_filled_without_the_network_and_keep_their_remote(repo: Path, tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q", "super")
    top = tmp_path / "super"
    add = ("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "remote.git"), "lib")
    run_git(top, *add)
    run_git(top, "commit", "-q", "-m", "with a submodule")
    (tmp_path / "remote.git").rename(tmp_path / "away.git")
    tree = Path(made(top).path)
    assert (tree / "lib/a").exists()
    assert out(tree / "lib", "remote", "get-url", "origin") == str(tmp_path / "remote.git")
    assert out(tree, "status", "--porcelain") == ""


def test_an_inherited_repository_is_ignored(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    tree = Path(made(repo).path)
    monkeypatch.undo()
    assert (tree / "a").exists() and not (tmp_path / "other/.git/index").exists()


def test_no_hook_runs_while_it_is_made(repo: Path) -> None:
    hook(repo / ".git/hooks", "post-checkout", "touch ../hook-ran")
    made(repo)
    assert not (repo.parent / "hook-ran").exists()


def test_the_lock_is_waited_for_and_told(repo: Path) -> None:
    common = str(repo / ".git")
    with locked(common), pytest.raises(AgentboxError, match="held by another agentbox"), locked(common, 0.05):
        pass
    with locked(common):
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKER, str(repo), "r1", "main", "HEAD"], env=agentbox_env(), stderr=subprocess.PIPE
        )
        wait_for(lambda: any("agentbox.lock" in file for file in _open_files(maker.pid)), what="it waits")
        assert not wt(repo).exists()
    assert maker.communicate()[1] == b"" and maker.returncode == 0
    assert wt(repo).exists()


def _open_files(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def test_a_checkout_has_a_deadline(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git(repo, "config", "filter.slow.smudge", "sleep 600")
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("a filter=slow\n")
    monkeypatch.setattr(create, "CHECKOUT_SECONDS", 0.5)
    with pytest.raises(AgentboxError, match="did not end within"):
        make(plan(str(repo), "r1", "main", None))
    assert not wt(repo).exists() and out(repo, "branch", "--list", "agent/*") == ""
