"""What a task left in its directory: files by their change time, what git holds no commit of, its last commits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from sandbox.errors import AgentboxError
from sandbox.kernel.background import bounded
from sandbox.report.model import Commit, Files, TaskReport, Time
from sandbox.worktree.git import git
from sandbox.worktree.repository import ANCHORS
from sandbox.worktree.state import WIP, State, look

T = TypeVar("T")
LAST_SECONDS = 60.0
WALK_SECONDS = 5.0
WALK_MOST = 200_000
NAMES_MOST = 1000


@dataclass
class _Walk:
    """`found`: (change time, path relative to the top) of files that changed since a moment."""

    whole: bool = False
    found: list[tuple[float, str]] = field(default_factory=list)


class Walks:
    """Each directory is walked once, however many tasks work in it.

    `since`: seconds since 1970; `home`: agentbox's own files, which are no task's.
    """

    def __init__(self, since: float, home: str) -> None:
        self.since, self.home = since, home
        self._done: dict[str, _Walk] = {}

    def files(self, place: str, begin: float, end: float) -> Files:
        """Those that changed in the last minute of `begin` to `end`, and those that changed after `end`."""
        walk = self._of(place)
        begin = max(begin, end - LAST_SECONDS)
        newest = sorted(walk.found, reverse=True)
        before = [name for at, name in newest if begin <= at <= end]
        after = [name for at, name in newest if at > end]
        return Files(place, before[:NAMES_MOST], after[:NAMES_MOST], walk.whole)

    def _of(self, place: str) -> _Walk:
        if place not in self._done:
            walk = self._done[place] = _Walk()
            bounded(lambda: _walk(place, self.since, self.home, walk), WALK_SECONDS)
        return self._done[place]


def _walk(top: str, since: float, home: str, walk: _Walk) -> None:
    """Neither through links nor into other file systems, nor into git's own directories."""
    deadline = time.monotonic() + WALK_SECONDS
    try:
        device = os.lstat(top).st_dev
    except OSError:
        return
    waiting, seen = [top], 0
    whole = True
    while waiting:
        for entry, info in _entries(waiting.pop()):
            seen += 1
            if seen > WALK_MOST or time.monotonic() > deadline:
                return
            if info is None:
                whole = False
            elif not entry.is_dir(follow_symlinks=False):
                if info.st_ctime >= since and entry.name != ".git":
                    walk.found.append((info.st_ctime, os.path.relpath(entry.path, top)))
            elif info.st_dev == device and entry.name != ".git" and entry.path != home:
                waiting.append(entry.path)
    walk.whole = whole


def _entries(path: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result | None]]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    yield entry, entry.stat(follow_symlinks=False)
                except OSError:
                    yield entry, None
    except OSError:
        return


def add_worktree(task: TaskReport, run_id: str, repository: str | None, base: str | None) -> None:
    """Fill what git tells of the task's worktree and branch; what it could not tell goes to `not_known`."""
    if not (task.worktree and task.branch):
        return
    state = look(run_id, task.task_id, task.worktree, task.branch, repository, base)
    if state.why:
        task.not_known.append(f"all of its worktree: {state.why}")
    if state.exists and state.dirty is not None:
        task.uncommitted = _asked(task, "what it left uncommitted", lambda: _uncommitted(state.path))
    where = task.worktree if state.exists else repository
    if where and state.head:
        head = state.head
        task.checkpoint = _asked(task, "its last checkpoint", lambda: _checkpoint(where, state, head))
        if state.ahead:
            task.last_commit = _asked(task, "its last commit", lambda: _log(where, head))


def _asked(task: TaskReport, what: str, ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except AgentboxError as error:
        task.not_known.append(f"{what}: {error}")
        return None


def _uncommitted(path: str) -> list[str]:
    """`XY NAME` each, as git-status(1) has it in its short format."""
    args = ("--porcelain=v1", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=none")
    return git("status", *args, cwd=path).fields[:NAMES_MOST]


def _checkpoint(where: str, state: State, head: str) -> Commit | None:
    """The last one on the branch, or beside it where a merge or the like was under way."""
    kept = f"--glob={ANCHORS}/{state.run_id}/{state.task_id}/*"
    return _log(where, f"--grep=^{WIP}", head, kept, *(["--not", state.base] if state.base else []))


def _log(where: str, *scope: str) -> Commit | None:
    found = git("log", "-1", "--format=%H%x00%ct%x00%s%x00", *scope, "--", cwd=where).fields
    if len(found) < 3:
        return None
    at = Time(int(found[1])) if found[1].isdigit() else None
    return Commit(found[0], at, found[2])
