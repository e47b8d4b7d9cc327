"""Findings about worktrees of runs that are over. Rules only, no look at anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping

from sandbox.reconcile.findings import Finding, finding
from sandbox.reconcile.state import Verdict
from sandbox.worktree.state import State


def worktree_findings(
    states: Iterable[State], verdicts: Mapping[str, Verdict], ends: Mapping[str, str | None]
) -> Iterator[Finding]:
    """Rules only: what could not be told is no finding. `ends`: when each run was over, as far as that is known."""
    for one in states:
        verdict = verdicts.get(one.run_id)
        if verdict is None or verdict.live:
            continue
        where = shlex.quote(one.path)
        if one.dirty:
            yield finding(
                "dirty_worktree",
                one.run_id,
                one.task_id,
                f"{one.path} has work that is not committed: {_counts(one)}",
                since=ends.get(one.run_id),
                evidence={"path": one.path, "branch": one.branch, "changed": one.changed, "untracked": one.untracked},
                command=f"git -C {where} status",
                key=(one.path,),
            )
        for stash in one.stashes or ():
            yield finding(
                "stash",
                one.run_id,
                one.task_id,
                f"{one.path}: {stash.name}: {stash.text}",
                since=ends.get(one.run_id),
                evidence={"path": one.path, "branch": one.branch, "commit": stash.commit},
                command=f"git -C {where} stash show -p {shlex.quote(stash.name)}",
                key=(one.path, stash.commit),
            )


def _counts(one: State) -> str:
    parts = [f"{count} {word}" for count, word in ((one.changed, "changed"), (one.untracked, "untracked")) if count]
    parts += [f"{one.conflicts} in conflict"] if one.conflicts else []
    return ", ".join([*parts, *([f"a {one.operation} under way"] if one.operation else [])])
