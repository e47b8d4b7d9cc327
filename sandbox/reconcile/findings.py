"""A finding of the reconciler: what it is, how grave, on what evidence, and what ends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.kernel.identity import Identity

Severity = Literal["info", "warning", "security"]

SEVERITY: dict[str, Severity] = {
    "orphan": "warning",
    "escapee": "security",
    "ghost": "security",
    "lost": "warning",
    "stopped_alive": "security",
    "leftovers": "warning",
    "duplicate_task": "warning",
    "duplicate_mcp": "warning",
    "stalled": "warning",
    "expired": "warning",
    "dirty_worktree": "info",
    "stash": "info",
    "unknown_box": "warning",
    "leftover_cgroup": "info",
    "engine_unreachable": "warning",
    "engine_disagrees": "warning",
    "bad_record": "warning",
}
"""Every kind there is, and how grave it is unless the finding says otherwise."""

KINDS = tuple(SEVERITY)

KEPT = {
    "escapee": "not proven to be of the run",
    "ghost": "not proven to be of the run",
    "leftovers": "--on-exit leave asked for it",
    "unknown_box": "that nobody needs it is not proven",
    "duplicate_task": "which of the two is wanted can't be told",
    "duplicate_mcp": "which of them the run uses can't be told",
    "engine_disagrees": "which of the two is right can't be told",
    "engine_unreachable": "an engine is not ours to repair",
    "stalled": "a long call looks the same",
    "bad_record": "a record is never changed",
    "dirty_worktree": "work is never deleted",
    "stash": "work is never deleted",
}
"""Why `--kill` leaves a finding of a kind, where it does and the finding does not say otherwise."""
SHOWN = ("engine_unreachable", "bad_record", "dirty_worktree", "stash")
"""Kinds whose command does not end anything, but shows more."""


@dataclass(frozen=True)
class Remedy:
    """What `--kill` does about a finding that is proven ours and unwanted.

    `how`: `stop` (the kill path on the run, or on the task), `processes` (SIGTERM, then SIGKILL, through pidfds on
    `identities` alone), `remove` (rmdir of empty cgroups), `close` (record the end of a lost run).
    """

    how: Literal["stop", "processes", "remove", "close"]
    identities: tuple[Identity, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One finding. `since`: RFC 3339 UTC, or None where it is not known. `command`: the exact one that ends it, or "".

    `key`: what two looks at the same thing have in common beside kind, run and task (a box's inode, a process's
    pid and start). `remedy`: None where nothing is proven or nothing is to be ended; `kept`: why, if it is not what
    KEPT says.
    """

    kind: str
    run_id: str | None
    task_id: str | None
    what: str
    since: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    severity: Severity = "warning"
    key: tuple[Any, ...] = ()
    remedy: Remedy | None = None
    kept: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.kind, self.run_id, self.task_id, self.key)

    @property
    def way_out(self) -> str:
        """`to end it: COMMAND`, for people; "" where there is no command."""
        return f"to {'see' if self.kind in SHOWN else 'end'} it: {self.command}" if self.command else ""

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it and the manifest keeps it."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "run_id": self.run_id,
            "task_id": self.task_id,
            "what": self.what,
            "since": self.since,
            "evidence": {**self.evidence, "ended_by_kill": self.remedy is not None},
            "command": self.command,
        }


def finding(kind: str, run_id: str | None, task_id: str | None, what: str, **more: Any) -> Finding:
    """A finding with its kind's severity, unless given."""
    more.setdefault("severity", SEVERITY[kind])
    return Finding(kind, run_id, task_id, what, **more)


GRAVITY: tuple[Severity, ...] = ("security", "warning", "info")


def in_order(found: list[Finding]) -> list[Finding]:
    """The gravest first, then by run, task and kind: the same each time."""
    return sorted(found, key=lambda f: (GRAVITY.index(f.severity), f.run_id or "", f.kind, f.task_id or "", str(f.key)))


def at_least(severity: Severity, found: Iterable[Finding]) -> list[Finding]:
    """Those that are so grave or graver, in their order."""
    return [one for one in found if GRAVITY.index(one.severity) <= GRAVITY.index(severity)]
