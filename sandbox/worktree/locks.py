"""Lock files that a killed git left in a task's worktree: removed only where no git can be using them.

git holds `index.lock` while an editor is open without having it open itself, so an open file is not all that counts:
no git of the lock's owner may be at work in the worktree either. What can't be told is left alone.
Source: gitrepository-layout(5); git's lockfile API makes `<file>.lock` with O_EXCL and renames it.
"""

from __future__ import annotations

import os
import time

from sandbox.errors import AgentboxError, number_of
from sandbox.kernel.places import holding, working_in

PATIENCE = 5.0


def clear(path: str, git_dir: str, common: str, branch: str | None, seconds: float = PATIENCE) -> list[str]:
    """Remove left locks of the worktree at `path` (its own, and its branch's); returns those removed.

    Waits `seconds` for whoever holds one. Raises AgentboxError for one that stays.
    """
    names = [f"{git_dir}/index.lock", f"{git_dir}/HEAD.lock"]
    if branch:
        names.append(f"{common}/refs/heads/{branch}.lock")
    removed = []
    deadline = time.monotonic() + seconds
    for name in names:
        while os.path.lexists(name):
            why = _in_use(name, path, git_dir)
            if not why:
                _unlink(name)
                removed.append(name)
            elif time.monotonic() >= deadline:
                raise AgentboxError(f"{name} stands in the way: {why}", fix="try again, or remove it if no git runs")
            else:
                time.sleep(0.05)
    return removed


def _in_use(name: str, path: str, git_dir: str) -> str:
    """Why the lock may still be somebody's, or ""."""
    try:
        uid = os.lstat(name).st_uid
    except OSError:
        return ""
    holders, blind = holding(name, uid=uid, comm="git")
    for folder in (path, git_dir):
        pids, unseen = working_in(folder, uid=uid, comm="git")
        holders += pids
        blind += unseen
    if holders:
        return f"git is at work (pid {', '.join(map(str, sorted(set(holders))))})"
    return f"{number_of(blind, 'git process')} can't be looked at" if blind else ""


def _unlink(name: str) -> None:
    try:
        os.unlink(name)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AgentboxError(f"{name} can't be removed: {error.strerror}", fix="see who owns it") from None
