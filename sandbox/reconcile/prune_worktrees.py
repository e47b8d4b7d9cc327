"""Worktrees that ended runs left: those that nothing could be lost with, and removing one.

What a worktree holds, sandbox.worktree.prune says; here is whether its run is proven over.
"""

from __future__ import annotations

from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.reconcile.look import Look, look
from sandbox.reconcile.records import worktrees_of
from sandbox.worktree import prune
from sandbox.worktree.prune import Candidate

OVER = ("exited", "stopped", "not started", "lost")
"""States of a run in which nobody works any more."""


def over(seen: Look, run_id: str) -> bool | None:
    """Is the run proven over, with nothing of it left alive? None: could not tell, or not a run of this home."""
    state = seen.states.get(run_id)
    survey = seen.survey
    if state is None or state == "unknown" or survey.not_asked or run_id not in survey.runs:
        return None
    if state not in OVER:
        return False
    if any(box.populated for box in survey.boxes.get(run_id, ())):
        return False
    held = any(box.populated is None for box in survey.boxes.get(run_id, ()))
    outside = {one.run_id for one in survey.servers} | {one.run_id for one in survey.strays}
    return None if held or run_id in outside else True


def worktrees(home: Home, seen: Look, drop_ignored: bool) -> tuple[list[Candidate], list[str]]:
    """Those of runs of this home that are not at work, nested ones first; and repositories that can't be asked."""
    found, unasked = [], []
    tasks = [
        task for run_id, state in sorted(seen.states.items()) if state in OVER for task in worktrees_of(home, run_id)
    ]
    for common in prune.repositories(task.repository for task in tasks):
        try:
            listed = prune.candidates(common, lambda run_id: over(seen, run_id), drop_ignored)
        except AgentboxError as error:
            unasked.append(f"worktrees of {common}: {error}")
            continue
        found += [one for one in listed if one.foreign or (one.run_id in seen.survey.runs and _idle(seen, one.run_id))]
    return found, unasked


def _idle(seen: Look, run_id: str) -> bool:
    return over(seen, run_id) is not False


def remove(home: Home, one: Candidate, drop_ignored: bool) -> list[str]:
    """Remove it after another look at its run and at what it holds; what was done. Raises AgentboxError if kept."""
    return prune.remove(one, lambda run_id: over(look(home, run_id), run_id), drop_ignored)


def secure(one: Candidate) -> list[str]:
    """Keep by refs the commits that only this worktree knows; what was done, or why not. Raises nothing."""
    try:
        return [f"kept a commit of {one.path} as {ref}" for ref in prune.secure(one)]
    except AgentboxError as error:
        return [f"no commit of {one.path} could be secured: {error}"]
