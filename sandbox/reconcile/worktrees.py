"""The observer of worktrees: what runs that are over left in theirs that is committed nowhere, or stashed.

Worktrees of live runs are at work, and not looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sandbox.manifest.fold import Task
from sandbox.worktree.state import State, look


def to_look_at(tasks: Iterable[tuple[str, Task]]) -> list[tuple[str, Task]]:
    """Those of `tasks` (each with its run's id) whose worktree is there, each worktree once."""
    found = {task.worktree: (run_id, task) for run_id, task in tasks if task.worktree and os.path.isdir(task.worktree)}
    return list(found.values())


def read_worktrees(tasks: Iterable[tuple[str, Task]]) -> list[State]:
    """Ask git about each. Bounded by git's own time-outs, so run it bounded."""
    return [look(run_id, one.task_id, one.worktree or "", one.branch or "", None) for run_id, one in tasks]
