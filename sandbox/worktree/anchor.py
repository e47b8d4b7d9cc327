"""Refs that keep commits from being lost: on a detached HEAD, left behind by a reset, or on a dropped branch.

Source: git-update-ref(1), git-rev-list(1), git-gc(1) (what no ref reaches is removed in time).
"""

from __future__ import annotations

import os

from sandbox.worktree.git import git
from sandbox.worktree.repository import ANCHORS, branch_of

_ALL_REFS = "--glob=refs/*"
"""Not --all: that counts HEAD of every worktree, which goes with the worktree."""


def ref_of(run_id: str, task_id: str, commit: str) -> str:
    return f"{ANCHORS}/{run_id}/{task_id}/{commit}"


def anchor(common: str, run_id: str, task_id: str, commit: str) -> str:
    """Keep one commit by a ref of its own; returns the ref. Raises AgentboxError."""
    branch_of(run_id, task_id)
    ref = ref_of(run_id, task_id, commit)
    git("update-ref", "-m", "agentbox: kept", ref, commit, cwd=common)
    return ref


def unreferenced(common: str, git_dir: str, branch: str) -> list[str]:
    """The newest of the commits that only HEAD or the logs of a worktree (and of its branch) know.

    Raises AgentboxError. `git_dir`: the worktree's private one. A commit below another of them is not listed, for
    the other keeps it.
    """
    known = {*_log(f"{git_dir}/logs/HEAD"), *_log(f"{common}/logs/refs/heads/{branch}")}
    head = git("--git-dir", git_dir, "rev-parse", "-q", "--verify", "HEAD^{commit}", cwd=common, check=False)
    known.update([head.line] if head.code == 0 else [])
    if not known:
        return []
    asked = "".join(f"{commit}\n" for commit in sorted(known))
    found = git("rev-list", "--ignore-missing", "--parents", "--stdin", "--not", _ALL_REFS, cwd=common, stdin=asked)
    lines = [line.split() for line in found.out.splitlines()]
    parents = {parent for line in lines for parent in line[1:]}
    return [line[0] for line in lines if line[0] not in parents]


def _log(path: str) -> set[str]:
    """The commits of a reflog file; its lines begin with the old and the new id (gitrepository-layout(5))."""
    try:
        with open(path, "rb") as file:
            words = [word for line in file for word in line.split(b" ", 2)[:2]]
    except OSError:
        return set()
    ids = {word.decode("ascii", "replace") for word in words}
    return {one for one in ids if len(one) in (40, 64) and set(one) <= set("0123456789abcdef") and set(one) != {"0"}}


def anchor_all(common: str, git_dir: str, run_id: str, task_id: str, branch: str) -> list[str]:
    """Anchor whatever commit would be lost with a worktree; returns the refs made. Raises AgentboxError."""
    if not os.path.isdir(git_dir):
        return []
    return [anchor(common, run_id, task_id, commit) for commit in unreferenced(common, git_dir, branch)]
