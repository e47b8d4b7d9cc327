"""Which worktrees of tasks could go, which stay and why, and removing one without losing work.

Kept by default: whatever is changed, untracked, ignored, stashed, on no branch, in no remote and no branch of a
person's, under way, or in use. git is never given --force but where this module has looked itself (submodules, a
worktree that was never made whole), and what was done is told. Sources: git-worktree(1), git-rev-list(1).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sandbox.errors import AgentboxError, number_of
from sandbox.kernel.places import working_in
from sandbox.worktree import submodules
from sandbox.worktree.anchor import anchor_all
from sandbox.worktree.git import git
from sandbox.worktree.repository import (
    Listed,
    admin_dir,
    branch_of,
    listed,
    locked,
    read_owner,
    relock,
    resolve,
)
from sandbox.worktree.state import NOT_OURS, State, look

Dead = Callable[[str], bool | None]
"""Is the run of this id proven dead? None: could not tell."""


@dataclass
class Candidate:
    """A worktree of ours. `keep`: why it stays, a line each; empty: it may go. `git_dir`: its private one.

    `foreign`: locked by somebody else with its directory gone: reported only.
    """

    common: str
    run_id: str
    task_id: str
    path: str
    branch: str
    git_dir: str | None
    state: State
    keep: list[str] = field(default_factory=list)
    foreign: bool = False

    @property
    def removable(self) -> bool:
        return not self.keep

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        names = ("run_id", "task_id", "path", "branch", "keep", "foreign", "removable")
        return {"repository": self.common, **{name: getattr(self, name) for name in names}}


def candidates(common: str, dead: Dead, drop_ignored: bool = False, run_id: str | None = None) -> list[Candidate]:
    """The worktrees of tasks in a repository (of one run, if given), nested ones first. Raises AgentboxError.

    `common`: the git directory that all its worktrees share. `drop_ignored`: ignored files alone keep nothing.
    """
    found = []
    for one in listed(common)[1:]:
        git_dir = admin_dir(common, one.path)
        owner = read_owner(git_dir) if git_dir else None
        ids = one.owner or ((owner.run_id, owner.task_id) if owner else None)
        if ids is None:
            if one.locked is not None and not os.path.lexists(one.path) and run_id is None:
                found.append(_foreign(common, one, git_dir))
        elif run_id in (None, ids[0]):
            found.append(_examine(common, one, git_dir, ids, dead, drop_ignored))
    return sorted(found, key=lambda c: (-c.path.count("/"), c.path))


def _foreign(common: str, one: Listed, git_dir: str | None) -> Candidate:
    state = State("", "", one.path, one.branch or "", exists=False)
    why = f"locked by somebody else ({one.locked or 'no reason given'}) and its directory is not there"
    return Candidate(common, "", "", one.path, one.branch or "", git_dir, state, [why], foreign=True)


def _examine(
    common: str, one: Listed, git_dir: str | None, ids: tuple[str, str], dead: Dead, drop_ignored: bool
) -> Candidate:
    owner = read_owner(git_dir) if git_dir else None
    branch = owner.branch if owner else branch_of(*ids)
    state = look(*ids, one.path, branch, common)
    found = Candidate(common, *ids, one.path, branch, git_dir, state)
    if one.locked is not None and one.owner is None:
        found.keep.append(f"locked by somebody else ({one.locked or 'no reason given'})")
    found.keep += _in_use(found, dead)
    try:
        if git_dir is None or state.exists is None:
            found.keep.append(state.why or "its git directory was not found")
        elif state.exists is False:
            found.keep += _gone(git_dir, one.path)
        elif state.finished_making is False and _untouched(found):
            pass  # a start that never came to its command: all of its files are in the commit
        else:
            found.keep += _work(found, drop_ignored)
    except AgentboxError as error:
        found.keep.append(f"could not tell: {error}")
    return found


def _in_use(found: Candidate, dead: Dead) -> list[str]:
    is_dead = dead(found.run_id)
    keep = []
    if is_dead is not True:
        told = "is not over" if is_dead is False else "may be alive: could not tell"
        keep.append(f"run {found.run_id} {told}")
    pids, blind = working_in(found.path, since=_made_at(found.git_dir))
    if pids:
        keep.append(f"pid {', '.join(map(str, pids[:5]))} works in it")
    if blind:
        keep.append(f"{number_of(blind, 'process')} can't be looked at, and may work in it")
    return keep


def _made_at(git_dir: str | None) -> float:
    """When the worktree was made, by a file that git never writes again; 0 where that can't be told."""
    try:
        return os.stat(f"{git_dir}/commondir").st_mtime
    except OSError:
        return 0.0


def _work(found: Candidate, drop_ignored: bool) -> list[str]:
    """What of a worktree could be lost with it."""
    s = found.state
    if s.dirty is None or s.unpushed is None or s.stashes is None:
        return [f"could not tell: {s.why or 'git did not say'}"]
    ignored = ", ".join(s.ignored_names[:3]) + (" …" if s.ignored > 3 else "")
    reasons = (
        (s.operation, f"a {s.operation} is under way"),
        (s.conflicts, number_of(s.conflicts, "conflict")),
        (s.changed, number_of(s.changed, "changed file")),
        (s.untracked, number_of(s.untracked, "untracked file")),
        (s.ignored and not drop_ignored, f"{number_of(s.ignored, 'ignored file')} ({ignored})"),
        (s.on is None, "HEAD is on no branch"),
        (s.unpushed, f"{number_of(s.unpushed, 'commit')} in no remote and no branch of yours"),
        (
            s.stashes,
            f"{len(s.stashes)} stash{'es' * (len(s.stashes) > 1)} ({', '.join(one.name for one in s.stashes[:3])})",
        ),
    )
    return [text for holds, text in reasons if holds] + submodules.unsaved(found.path, found.common)


def _gone(git_dir: str, path: str) -> list[str]:
    """Why the entry of a worktree whose directory is not there stays."""
    owner = read_owner(git_dir)
    try:
        inode = os.stat(os.path.dirname(path)).st_ino
    except OSError:
        return ["its directory is not there, nor the one above it: perhaps it is not mounted"]
    if owner is None or owner.parent_inode != inode:
        return ["its directory is not there, and the one above it is another than it was: perhaps it is not mounted"]
    staged = git("--git-dir", git_dir, "diff-index", "--cached", "--quiet", "HEAD", cwd=git_dir, check=False).code
    if owner.ready and staged != 0:
        return ["its directory is gone, but its index holds changes that were never committed"]
    return []


def _untouched(found: Candidate) -> bool:
    """Are all files of a half-made worktree as its commit has them (or missing)? Raises AgentboxError."""
    with tempfile.TemporaryDirectory(prefix="agentbox-") as folder:
        env = {"GIT_INDEX_FILE": f"{folder}/index"}
        git("read-tree", "HEAD", cwd=found.path, env=env)
        git("add", "-A", "--force", ":/", cwd=found.path, env=env)
        added = git("diff-index", "--cached", "--name-only", "--diff-filter=d", "HEAD", cwd=found.path, env=env)
    return not added.out


def secure(candidate: Candidate) -> list[str]:
    """Anchor commits that nothing but this worktree knows, whether it stays or goes; the refs made.

    Raises AgentboxError.
    """
    if candidate.foreign or candidate.git_dir is None:
        return []
    return anchor_all(candidate.common, candidate.git_dir, candidate.run_id, candidate.task_id, candidate.branch)


def remove(candidate: Candidate, dead: Dead, drop_ignored: bool = False) -> list[str]:
    """Remove one worktree after a second look; what was done, a line each. Raises AgentboxError where it is kept.

    Its branch goes too if all of it is in a remote or in a branch of a person's; else it stays.
    """
    common, path = candidate.common, candidate.path
    with locked(common):
        now = [one for one in candidates(common, dead, drop_ignored, candidate.run_id or None) if one.path == path]
        if not now:
            return [f"{path} was removed already"]
        again = now[0]
        if again.keep:
            raise AgentboxError(f"{path} is kept: {'; '.join(again.keep)}", fix="save what it holds, or leave it")
        did = [f"kept a commit of {path} as {ref}" for ref in secure(again)]
        return [*did, *_remove(again), *_remove_branch(again)]


def _remove(found: Candidate) -> list[str]:
    why = ""
    if found.state.exists and found.state.finished_making is False:
        why = "it was never made whole"
    elif found.state.exists and submodules.present(found.path):
        why = "it has submodules, which hold nothing of their own"
    git("worktree", "unlock", found.path, cwd=found.common, check=False)
    done = git(
        "worktree", "remove", *(["--force"] if why else []), found.path, cwd=found.common, check=False, seconds=600.0
    )
    if done.code != 0:
        relock(found.common, found.path, found.run_id, found.task_id)
        text = done.err.strip().removeprefix("fatal: ") or f"exit status {done.code}"
        raise AgentboxError(f"{found.path} is kept: git worktree remove: {text}")
    if not found.state.exists:
        return [f"forgot {found.path}, whose directory is gone"]
    return [f"removed {found.path}" + (f" (with --force: {why})" if why else "")]


def _remove_branch(found: Candidate) -> list[str]:
    ref = f"refs/heads/{found.branch}"
    tip = resolve(ref, found.common)
    if tip is None:
        return []
    own = git("rev-list", "--count", tip, "--not", *NOT_OURS, cwd=found.common)
    held = any(one.branch == found.branch for one in listed(found.common))
    if own.line != "0" or held:
        return [f"kept branch {found.branch}"]
    git("update-ref", "-d", ref, tip, cwd=found.common)
    return [f"removed branch {found.branch}, all of which is elsewhere"]


def repositories(commons: Iterable[str | None]) -> list[str]:
    """Those of the recorded git directories that exist, each once."""
    return sorted({one for one in commons if one and os.path.isdir(f"{one}/objects")})
