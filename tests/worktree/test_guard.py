"""The push guard: agent/* alone, and the user's own hooks run as they did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worktree.conftest import commit, hook, made, out, run_git


@pytest.fixture
def tree(repo: Path) -> Path:
    path = Path(made(repo).path)
    commit(path, "work")
    return path


def remote_refs(tmp_path: Path) -> list[str]:
    return out(tmp_path / "remote.git", "for-each-ref", "--format=%(refname)").split()


def test_only_agent_branches_can_be_pushed(tree: Path, tmp_path: Path) -> None:
    for spec in ("HEAD:main", "HEAD:refs/tags/v1", "agent/r1/main:refs/heads/x", "HEAD:refs/heads/agents/x", ":main"):
        done = run_git(tree, "push", "origin", spec, check=False)
        assert done.returncode != 0
        assert "only agent/* may be pushed" in done.stderr, done.stderr
    mixed = run_git(tree, "push", "origin", "HEAD:agent/r1/main", "HEAD:main", check=False)
    assert mixed.returncode != 0
    assert remote_refs(tmp_path) == ["refs/heads/main"]
    run_git(tree, "push", "-q", "origin", "agent/r1/main")
    assert remote_refs(tmp_path) == ["refs/heads/agent/r1/main", "refs/heads/main"]
    run_git(tree, "push", "-q", "origin", "agent/r1/main")  # nothing to do


def test_other_worktrees_push_as_before(repo: Path, tree: Path, tmp_path: Path) -> None:
    commit(repo, "b")
    run_git(repo, "push", "-q", "origin", "main")
    assert out(tmp_path / "remote.git", "log", "-1", "--format=%s", "main") == "add b"


def test_own_hooks_run_wherever_they_are_and_can_refuse(repo: Path, tree: Path, git_config: Path) -> None:
    places = {
        "common": repo / ".git/hooks",
        "local": repo.parent / "local hooks",
        "relative": tree / ".husky",
    }
    for name, folder in places.items():
        hook(folder, "pre-commit", f'echo "$0" > "{repo.parent}/ran-{name}"')
        hook(folder, "pre-push", f'cat > "{repo.parent}/pushed-{name}"; exit 3')
    settings = {"common": None, "local": str(places["local"]), "relative": ".husky"}
    for name, value in settings.items():
        if value:
            run_git(repo, "config", "core.hooksPath", value)
        commit(tree, f"file-{name}")
        assert (repo.parent / f"ran-{name}").exists(), name
        done = run_git(tree, "push", "origin", "agent/r1/main", check=False)
        assert done.returncode != 0
        told = (repo.parent / f"pushed-{name}").read_text().split()
        assert told[0] == told[2] == "refs/heads/agent/r1/main", told
    run_git(repo, "config", "--unset", "core.hooksPath")
    run_git(repo, "config", "--global", "core.hooksPath", str(places["local"]))
    (repo.parent / "ran-local").unlink()
    commit(tree, "file-global")
    assert (repo.parent / "ran-local").exists()


def test_a_worktree_setting_of_the_users_own_is_passed_on(repo: Path) -> None:
    hook(repo.parent / "mine", "commit-msg", f'touch "{repo.parent}/ran"')
    run_git(repo, "config", "extensions.worktreeConfig", "true")
    run_git(repo, "config", "--worktree", "core.hooksPath", str(repo.parent / "mine"))
    commit(Path(made(repo).path), "work")
    assert (repo.parent / "ran").exists()
    assert out(repo, "config", "--worktree", "core.hooksPath") == str(repo.parent / "mine")


def test_a_hook_that_is_not_executable_or_absent_is_none(repo: Path, tree: Path) -> None:
    hook(repo.parent / "h", "pre-commit", "exit 1")
    (repo.parent / "h/pre-commit").chmod(0o644)
    run_git(repo, "config", "core.hooksPath", str(repo.parent / "h"))
    commit(tree, "more")
