"""What a report tells, as data. None, or an entry of `not_known`, is what could not be told; nothing is guessed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import Any


class Time(float):
    """A moment in seconds since 1970 (UTC); its text is RFC 3339 with microseconds."""

    def __str__(self) -> str:
        whole = int(self // 1)
        micro = min(int((self - whole) * 1e6 + 0.5), 999_999)
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{micro:06d}Z"

    @classmethod
    def of(cls, text: object) -> Time | None:
        """RFC 3339 with an offset, as the records have it; None for what is none, or out of any calendar's reach."""
        try:
            found = datetime.fromisoformat(str(text)) if isinstance(text, str) else None
            return cls(found.timestamp()) if found and found.tzinfo and 1970 <= found.year < 3000 else None
        except (ValueError, OverflowError):
            return None


@dataclass
class Call:
    """A tool call by the worker's own marks. `ended`: None where no end was marked; `began` the same."""

    name: str
    began: Time | None
    ended: Time | None = None
    tokens: int = 0


@dataclass
class Hold:
    """A worker that held itself at a boundary under PAUSE; `until` None: it still held at the end."""

    name: str
    since: Time
    until: Time | None = None


@dataclass
class Boundary:
    """The last mark of a worker: `word` is call (that call began), tick (it ended), quiet or stop."""

    at: Time
    word: str
    name: str


@dataclass
class Commit:
    commit: str
    at: Time | None
    subject: str


@dataclass
class Process:
    """A process that a stop ended (or could not). `age` in seconds at the stop; `task_id` None: could not tell."""

    pid: int
    argv: list[str] | None
    name: str | None
    age: float | None
    state: str | None
    cwd: str | None
    task_id: str | None = None


@dataclass
class Files:
    """Files below `place` by their change time (ctime(3p), which no program can set), relative, the newest first.

    `before`: changed in the last minute before the stop; `after`: since it. `whole`: False where the walk was given
    up. Files that were deleted are in neither.
    """

    place: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    whole: bool = True


@dataclass
class Order:
    """`order`: RUN, PAUSE, STOP, or what a redirect said of a task: keep, modify (`reason`: what changes), drop.

    `by`: a uid and pid, or ""; `inside`: it was given from inside of a box.
    """

    at: Time | None
    order: str
    task_id: str | None
    reason: str
    by: str
    generation: int | None = None
    inside: bool | None = None


@dataclass
class Rung:
    at: Time | None
    rung: str
    task_id: str | None
    processes: int | None


@dataclass
class Stop:
    """One stop, from its receipt. `frozen_at`: from then on no instruction of it executed; None: never frozen alive.

    `proof`: empty, alive or unknown, as the kernel said.
    """

    task_id: str | None
    ordered_at: Time | None
    frozen_at: Time | None
    empty_at: Time | None
    proof: str
    by: str
    reason: str
    rungs: list[Rung] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    survivors: list[Process] = field(default_factory=list)
    escapees: list[Process] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def at(self) -> Time | None:
        """When it stopped: frozen, else the latest moment at which it can still have been alive."""
        return self.frozen_at or self.empty_at


@dataclass
class Finding:
    """`now`: seen when the report was made; else from the record."""

    kind: str
    severity: str
    task_id: str | None
    what: str
    at: Time | None
    command: str
    now: bool


@dataclass
class TaskReport:
    """One task. `uncommitted` and `files` are as they are now, None where they could not be told.

    `in_flight`: started and not marked as finished when it stopped. `ends_marked`: False where the worker never
    marked an end, so that calls in flight can't be told from finished ones. `stopped_by`: frozen, killed, term
    (after a SIGTERM), left (by itself under a stop), ended (by itself), running or unknown.
    """

    task_id: str
    state: str
    argv: list[str]
    started_at: Time | None = None
    stopped_at: Time | None = None
    stopped_by: str = "unknown"
    outcome: str | None = None
    code: int | None = None
    backend: str | None = None
    pid: int | None = None
    branch: str | None = None
    worktree: str | None = None
    gate: bool = False
    ends_marked: bool = True
    calls: list[Call] = field(default_factory=list)
    calls_cut: bool = False
    in_flight: list[Call] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    last_boundary: Boundary | None = None
    told_to_stop_at: Time | None = None
    tokens: int | None = None
    checkpoint: Commit | None = None
    last_commit: Commit | None = None
    uncommitted: list[str] | None = None
    files: Files | None = None
    processes: list[Process] = field(default_factory=list)
    not_known: list[str] = field(default_factory=list)

    @property
    def finished(self) -> list[Call]:
        return [call for call in self.calls if call.ended is not None]


@dataclass
class Report:
    """A run. `alive`: empty, alive or unknown, asked of the kernel when the report was made (`made_at`)."""

    run_id: str
    made_at: Time
    state: str
    why: str
    alive: str
    summary: str = ""
    argv: list[str] = field(default_factory=list)
    cwd: str | None = None
    host: str | None = None
    backend: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    created_at: Time | None = None
    created_by: str = ""
    stopped_at: Time | None = None
    empty_at: Time | None = None
    ended_at: Time | None = None
    outcome: str | None = None
    code: int | None = None
    record: str = "not known"
    orders: list[Order] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    tasks: list[TaskReport] = field(default_factory=list)
    unplaced: list[Process] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    not_known: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> list[tuple[TaskReport, Call]]:
        """At the stop of the run: what a task that had ended before left unfinished is not among them."""
        there = [task for task in self.tasks if task.stopped_by not in ("ended", "not started")]
        return [(task, call) for task in there for call in task.in_flight]

    @property
    def processes(self) -> int:
        return sum(len(task.processes) for task in self.tasks) + len(self.unplaced)


def plain(value: Any) -> Any:
    """As JSON has it: objects, arrays, and each Time as its text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Time):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value
