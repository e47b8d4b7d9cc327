"""Marking the branch of a task that was dropped. Source: git-branch(1)."""

from __future__ import annotations

from sandbox.errors import AgentboxError
from sandbox.worktree.checkpoint import checkpoint
from sandbox.worktree.git import git
from sandbox.worktree.repository import ABANDONED, branch_of, discover, resolve


def abandon(worktree: str, run_id: str, task_id: str) -> str:
    """Commit what a dropped task left in its worktree, and mark its branch; returns the branch's new name.

    For a task that is proven dead. Raises AgentboxError; what could not be committed stays in the worktree.
    """
    common = discover(worktree).common
    try:
        checkpoint(worktree, "dropped", task_id)
    except AgentboxError:
        pass  # the files are where they were, and the branch is to be marked all the same
    return mark_abandoned(common, run_id, task_id)


def mark_abandoned(common: str, run_id: str, task_id: str) -> str:
    """Rename `agent/<run>/<task>` to `abandoned/<run>/<task>`; returns the branch's name. Raises AgentboxError.

    The worktree stays on it. Where the name is taken a number is added; where git does not rename (a rebase is
    under way) the new branch is made beside the old one. A task that is abandoned already stays as it is.
    """
    old, new = branch_of(run_id, task_id), branch_of(run_id, task_id, ABANDONED)
    tip = resolve(f"refs/heads/{old}", common)
    if tip is None and resolve(f"refs/heads/{new}", common):
        return new
    if tip is None:
        # Raises with git's own words: there is no such branch.
        git("rev-parse", "--verify", f"refs/heads/{old}", cwd=common)
    name, number = new, 1
    while resolve(f"refs/heads/{name}", common):
        number += 1
        name = f"{new}-{number}"
    if git("branch", "-m", old, name, cwd=common, check=False).code != 0:
        git("branch", "--no-track", name, f"refs/heads/{old}", cwd=common)
    return name
