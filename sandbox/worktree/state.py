"""What a task's worktree is now: changed files, commits, stashes, whether anything of it could be lost.

Nothing is changed by looking (no refresh of the index, no lock). Each answer has three values; None: could not tell.
Sources: git-status(1) porcelain format 2, git-rev-list(1), git-stash(1).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sandbox.errors import AgentboxError
from sandbox.worktree.git import git
from sandbox.worktree.repository import ABANDONED, OURS, branch_of, git_dir_of, read_owner

SECONDS = 30.0
WIP = "wip: "
_OPERATIONS = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}
NOT_OURS = (f"--exclude={OURS}/*", f"--exclude={ABANDONED}/*", "--branches", "--tags", "--remotes")
"""For rev-list --not: the refs that are no agent's. What they reach outlives any worktree and branch of a task."""


@dataclass(frozen=True)
class Stash:
    """`name`: as `git stash` takes it, such as `stash@{0}`; `made_at` in seconds since 1970 (UTC)."""

    name: str
    commit: str
    made_at: int
    text: str


@dataclass
class State:
    """One worktree. Counts are of paths (`changed`, `untracked`, `ignored`, `conflicts`) and of commits.

    `branch`: the task's own; `on`: the one checked out now, None for a detached HEAD. `ahead`: beyond where it
    started; `unpushed`: in no remote, no tag and no branch but those of agents. `operation`: a merge, rebase,
    cherry-pick, revert or bisect that is under way. `finished_making`: False if it was never made whole.
    """

    run_id: str
    task_id: str
    path: str
    branch: str
    exists: bool | None = None
    dirty: bool | None = None
    wip: bool | None = None
    abandoned: bool | None = None
    head: str | None = None
    on: str | None = None
    base: str | None = None
    changed: int = 0
    untracked: int = 0
    ignored: int = 0
    conflicts: int = 0
    ahead: int | None = None
    unpushed: int | None = None
    operation: str | None = None
    finished_making: bool | None = None
    stashes: list[Stash] | None = None
    ignored_names: list[str] = field(default_factory=list)
    why: str = ""

    @property
    def clean(self) -> bool | None:
        """Nothing changed, nothing untracked, nothing under way; ignored files do not count."""
        return None if self.dirty is None else not self.dirty

    def as_dict(self) -> dict[str, Any]:
        """As `worktrees --json` prints it."""
        shown = asdict(self)
        return {**shown, "clean": self.clean, "stash": None if self.stashes is None else len(self.stashes)}


def look(run_id: str, task_id: str, path: str, branch: str, repository: str | None, base: str | None = None) -> State:
    """One worktree. Never raises: what could not be told is None, and `why` says why.

    `repository`: the common git directory by the record; it answers for a worktree whose directory is gone.
    """
    state = State(run_id, task_id, path, branch, base=base)
    git_dir = git_dir_of(path)
    try:
        os.lstat(path)
        state.exists = True
    except FileNotFoundError:
        state.exists = False
        state.why = "its directory is gone"
    except OSError as error:
        state.why = f"it can't be looked at: {error.strerror}"
    try:
        if git_dir is not None:
            _look_inside(state, git_dir)
        elif state.exists:
            state.why = "it is no worktree of git's any more"
        where = path if git_dir else repository
        if where and os.path.isdir(where):
            _look_at_refs(state, where)
    except AgentboxError as error:
        state.why = str(error)
    return state


def _look_inside(state: State, git_dir: str) -> None:
    owner = read_owner(git_dir)
    if owner is not None:
        state.base, state.finished_making = state.base or owner.base, owner.ready
    state.operation = operation(git_dir)
    status = git(
        "status",
        "--porcelain=v2",
        "--branch",
        "-z",
        "--untracked-files=normal",
        "--ignored=traditional",
        "--ignore-submodules=none",
        cwd=state.path,
        seconds=SECONDS,
    )
    count(state, status.fields)
    state.dirty = bool(state.changed or state.untracked or state.conflicts or state.operation)


def is_dirty(path: str) -> bool | None:
    """Does the worktree at `path` hold a change, an untracked file or an unfinished operation? None: could not tell."""
    state, git_dir = State("", "", path, ""), git_dir_of(path)
    try:
        if git_dir is not None:
            _look_inside(state, git_dir)
    except AgentboxError:
        return None
    return state.dirty


def changed_files(path: str) -> list[str]:
    """Paths in the task's worktree at `path` that differ from where it started, committed or not, sorted.

    Ignored files are left out. Raises AgentboxError.
    """
    git_dir = git_dir_of(path)
    owner = read_owner(git_dir) if git_dir else None
    # Two calls and no rename detection: the old name of a file that was moved has changed as well.
    args = ("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", owner.base if owner else "HEAD", "--")
    changed = git(*args, cwd=path).fields
    new = git("ls-files", "--others", "--exclude-standard", "-z", cwd=path).fields
    return sorted({*changed, *new})


def count(state: State, fields: Sequence[str]) -> None:
    """Fill the counts from the fields of `git status --porcelain=v2 --branch -z`."""
    skip = False
    for entry in fields:
        if skip:
            skip = False
            continue
        kind, _, rest = entry.partition(" ")
        if kind in ("1", "2"):
            state.changed += 1
            skip = kind == "2"  # the old name of a rename is a field of its own
        elif kind == "u":
            state.conflicts += 1
        elif kind == "?":
            state.untracked += 1
        elif kind == "!":
            state.ignored += 1
            state.ignored_names.append(rest)
        elif rest.startswith("branch.oid "):
            oid = rest.removeprefix("branch.oid ")
            state.head = None if oid == "(initial)" else oid
        elif rest.startswith("branch.head "):
            name = rest.removeprefix("branch.head ")
            state.on = None if name == "(detached)" else name


def operation(git_dir: str) -> str | None:
    """The operation of several steps that is under way in a worktree, by its private git directory."""
    return next((name for file, name in _OPERATIONS.items() if os.path.lexists(f"{git_dir}/{file}")), None)


def _look_at_refs(state: State, folder: str) -> None:
    marked = f"refs/heads/{branch_of(state.run_id, state.task_id, ABANDONED)}"
    names = git("for-each-ref", "--format=%(refname)", f"{marked}*", cwd=folder).out.split()
    state.abandoned = any(name == marked or name.startswith(f"{marked}-") for name in names)
    if state.head is None:
        asked = git("rev-parse", "-q", "--verify", f"refs/heads/{state.branch}", cwd=folder, check=False)
        state.head = asked.line if asked.code == 0 else None
    if state.head is None:
        state.stashes = stashes(folder, branches_of(state.run_id, state.task_id))
        return
    if state.base is not None:
        ahead = git("rev-list", "--count", f"{state.base}..{state.head}", cwd=folder, check=False)
        state.ahead = int(ahead.line) if ahead.code == 0 else None
    state.unpushed = int(git("rev-list", "--count", state.head, "--not", *NOT_OURS, cwd=folder).line)
    text = git("log", "-1", "--format=%s", state.head, cwd=folder).line
    state.wip = text.startswith(WIP)
    state.stashes = stashes(folder, branches_of(state.run_id, state.task_id))


def branches_of(run_id: str, task_id: str) -> list[str]:
    return [branch_of(run_id, task_id), branch_of(run_id, task_id, ABANDONED)]


def stashes(folder: str, branches: Sequence[str] = ()) -> list[Stash]:
    """Stashes of the repository, the newest first; with `branches`, those made on one of them.

    All worktrees share one stash. One made on a detached HEAD names no branch: it is counted where the commit
    below it was checked out in this worktree. Raises AgentboxError.
    """
    asked = git("log", "-g", "--format=%H%x00%P%x00%ct%x00%gs%x00", "refs/stash", "--", cwd=folder, check=False)
    if asked.code != 0:
        return []  # there is none
    words = [word.lstrip("\n") for word in asked.fields]
    seen: set[str] | None = None
    found = []
    for number, (commit, parents, made_at, text) in enumerate(zip(*(words[n::4] for n in range(4)), strict=False)):
        on = text.removeprefix("WIP on ").removeprefix("On ")
        if branches and not any(on.startswith(f"{branch}:") for branch in branches):
            if not on.startswith("(no branch):"):
                continue
            seen = _checked_out(folder) if seen is None else seen
            if parents.partition(" ")[0] not in seen:
                continue
        found.append(Stash(f"stash@{{{number}}}", commit, int(made_at) if made_at.isdigit() else 0, text))
    return found


def _checked_out(folder: str) -> set[str]:
    """Commits that HEAD of the worktree at `folder` has been at; none for a repository's own directory."""
    if not os.path.isfile(f"{folder}/.git"):
        return set()
    return set(git("log", "-g", "--format=%H", "HEAD", "--", cwd=folder, check=False).out.split())
