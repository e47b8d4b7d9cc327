"""Making a task's worktree, and taking it back if nothing ever ran in it.

Only what changes the shared repository is done under its lock; the files are written after, so that many can be
made at a time. The start point is resolved to a commit first, so that git has nothing to track.
Source: git-worktree(1).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sandbox.errors import AgentboxError
from sandbox.worktree import guard, submodules
from sandbox.worktree.git import GitError, git
from sandbox.worktree.repository import (
    Owner,
    Repository,
    branch_of,
    discover,
    git_dir_of,
    listed,
    lock_reason,
    locked,
    path_of,
    read_owner,
    relock,
    resolve,
    write_owner,
)

CHECKOUT_SECONDS = 1800.0
"""A large repository on a slow disk; a stop ends it at once."""


@dataclass(frozen=True)
class Plan:
    """A worktree to be made. `base`: the full commit id that it starts from. `asked`: the name it was given by."""

    repository: Repository
    run_id: str
    task_id: str
    path: str
    branch: str
    base: str
    asked: str

    def as_record(self) -> dict[str, Any]:
        """As the intent of the task names it, before any of it exists."""
        return {
            "branch": self.branch,
            "worktree": self.path,
            "repository": self.repository.common,
            "base": self.base,
        }


def plan(
    folder: str | None, run_id: str, task_id: str, base: str | None, state_of: Callable[[str], str] = lambda run: ""
) -> Plan:
    """What `make` would do for a task started in `folder`; nothing is changed. Raises AgentboxError.

    `state_of` gives a run's state in a word, for the error line of a branch that is held by it.
    """
    branch = branch_of(run_id, task_id)
    repository = discover(folder)
    assert folder is not None
    commit = resolve(base or "HEAD", folder)
    if commit is None:
        fix = "git fetch, or name another --base" if base else "make a first commit, or give --base"
        raise AgentboxError(f"{base or 'HEAD'} names no commit in {repository.main}", fix=fix)
    made = Plan(repository, run_id, task_id, path_of(repository, run_id, task_id), branch, commit, base or "HEAD")
    _refuse_taken(made, state_of)
    return made


def _refuse_taken(made: Plan, state_of: Callable[[str], str]) -> None:
    common = made.repository.common
    if git("show-ref", "--verify", "-q", f"refs/heads/{made.branch}", cwd=common, check=False).code == 0:
        holder = next((one for one in listed(common) if made.branch == one.branch), None)
        where = f"checked out at {holder.path}" if holder else "there, in no worktree"
        run = holder.owner[0] if holder and holder.owner else made.run_id
        state = state_of(run)
        by = f" by run {run}{f' ({state})' if state else ''}" if holder else ""
        raise AgentboxError(f"branch {made.branch} is {where}{by}", fix="choose another --run-id or --task")
    if os.path.lexists(made.path):
        raise AgentboxError(f"{made.path} exists", fix="choose another --run-id or --task, or move it away")


def make(made: Plan, stop: Callable[[], object] = lambda: None) -> list[str]:
    """Make the worktree; returns what could not be done of it (submodules). Raises AgentboxError with nothing left.

    `stop` is asked every now and then, and ends it.
    """
    try:
        git_dir, owner = _add(made, stop)
    except OSError as error:
        raise _undone(made, AgentboxError(f"{error.filename} can't be written: {error.strerror}")) from None
    try:
        git("reset", "-q", "--hard", "--no-recurse-submodules", cwd=made.path, seconds=CHECKOUT_SECONDS, stop=stop)
        notes = submodules.populate(made.path, made.repository.common, stop)
        write_owner(git_dir, replace(owner, ready=True))
    except OSError as error:
        raise _undone(made, AgentboxError(f"{error.filename} can't be written: {error.strerror}")) from None
    except AgentboxError as error:
        raise _undone(made, error) from None
    return notes


def _add(made: Plan, stop: Callable[[], object]) -> tuple[str, Owner]:
    """The part that changes what all worktrees share. Raises AgentboxError with nothing left, or OSError."""
    common = made.repository.common
    with locked(common):
        if stop():
            raise GitError("the worktree was not made: a stop was asked for")
        # Looked at again under the lock: what is there now was made by somebody else, and stays.
        _refuse_taken(made, lambda run: "")
        guard.enable_worktree_config(common)
        try:
            args = ["--no-checkout", "--no-track", "--no-guess-remote", "--lock", "--reason"]
            args += [lock_reason(made.run_id, made.task_id), "-b", made.branch, made.path, made.base]
            git("worktree", "add", "-q", *args, cwd=common)
            git_dir = git_dir_of(made.path)
            if git_dir is None:
                raise GitError(f"git made no worktree at {made.path}")
            inode = os.stat(os.path.dirname(made.path)).st_ino
            owner = Owner(made.run_id, made.task_id, made.branch, made.base, inode)
            write_owner(git_dir, owner)
            guard.install(made.path, git_dir, common)
        except AgentboxError as error:
            raise _undone(made, error) from None
    return git_dir, owner


def _undone(made: Plan, error: AgentboxError) -> AgentboxError:
    """The error, with what could not be taken back."""
    left = undo(made)
    return AgentboxError(f"{error.what} ({left})", fix=error.fix, code=error.code) if left else error


def undo(made: Plan) -> str:
    """Take back a worktree in which no command has run, and its branch; "" or what is left of it and why.

    What somebody has put there meanwhile keeps it: only a worktree that was not made whole is removed by force,
    for all in it is what git was writing.
    """
    common, left = made.repository.common, []
    git_dir = git_dir_of(made.path)
    if git_dir is not None:
        force = not _is_whole(git_dir) or submodules.present(made.path)
        if force and _is_whole(git_dir) and submodules.unsaved(made.path, common):
            return f"{made.path} is kept: a submodule in it was changed"
        git("worktree", "unlock", made.path, cwd=common, check=False)
        done = git("worktree", "remove", *(["--force"] if force else []), made.path, cwd=common, check=False)
        if done.code != 0:
            relock(common, made.path, made.run_id, made.task_id)
            left.append(f"{made.path} is kept")
    if not left:
        # Only as long as it stands where it was made: a commit on it is somebody's work.
        git("update-ref", "-d", f"refs/heads/{made.branch}", made.base, cwd=common, check=False)
    if resolve(f"refs/heads/{made.branch}", common):
        left.append(f"branch {made.branch} is kept")
    return ", ".join(left)


def _is_whole(git_dir: str) -> bool:
    owner = read_owner(git_dir)
    return owner is not None and owner.ready
