"""What a manifest says a run is: a fold over its records, each of which may be wrong, twice or missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.manifest.ids import is_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Record = dict[str, Any]


@dataclass(frozen=True)
class Process:
    """A process by pid and start time in clock ticks since boot; the boot is the task's."""

    pid: int
    start_ticks: int | None


@dataclass(frozen=True)
class Box:
    """Where a task lives. `cgroup`: its path as recorded; `cgroup_inode` of it, `parent_inode` of the run's."""

    backend: str | None = None
    id: str | None = None
    cgroup: str | None = None
    cgroup_inode: int | None = None
    parent_inode: int | None = None


@dataclass
class Task:
    """One task, as its last start tells it. `state`: intent, started, exited or failed (to start).

    `earlier`: starts of the same id that never exited, oldest first; more than none means a task id used
    twice. Times are as in the records (RFC 3339, UTC). What the record does not tell is None. `nothing_made`: it
    failed before there was a box.
    """

    task_id: str
    state: str = "intent"
    intent_at: str | None = None
    argv: list[str] = field(default_factory=list)
    cwd: str | None = None
    backend: str | None = None
    host: str | None = None
    boot_id: str | None = None
    pid: int | None = None
    start_ticks: int | None = None
    box: Box | None = None
    launcher: Process | None = None
    detached: bool | None = None
    started_at: str | None = None
    remote_id: str | None = None
    branch: str | None = None
    worktree: str | None = None
    repository: str | None = None
    base: str | None = None
    harness: str | None = None
    code: int | None = None
    signal: int | None = None
    outcome: str | None = None
    why: str | None = None
    nothing_made: bool = False
    leftovers: list[Any] = field(default_factory=list)
    output_dropped: int = 0
    ended_at: str | None = None
    earlier: list[Task] = field(default_factory=list)


@dataclass
class Run:
    """One run. `orders`, `rungs`, `receipts`, `steering`, `findings`, `notes`: the records, in their order.

    `ended`: the last run.ended record or None. `created_by`: its `by`. `records`: how many were folded,
    repeated ones counted once; `unknown`: of those, the ones whose event or task id means nothing here.
    """

    run_id: str | None = None
    created_at: str | None = None
    created_by: Record | None = None
    host: str | None = None
    boot_id: str | None = None
    argv: list[str] = field(default_factory=list)
    cwd: str | None = None
    backend: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    parent_run: str | None = None
    main_task: str = "main"
    detached: bool | None = None
    on_exit: str | None = None
    timeout: float | None = None
    version: str | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    orders: list[Record] = field(default_factory=list)
    rungs: list[Record] = field(default_factory=list)
    receipts: list[Record] = field(default_factory=list)
    steering: list[Record] = field(default_factory=list)
    findings: list[Record] = field(default_factory=list)
    notes: list[Record] = field(default_factory=list)
    ended: Record | None = None
    records: int = 0
    unknown: int = 0

    def may_use(self, backend: str) -> bool:
        """Whether there may be a box of this backend: not if all that was to be one failed before it was made."""
        asked = [task for task in self.tasks.values() if task.backend == backend]
        if not asked:
            return self.backend == backend
        return not all(task.state == "failed" and task.nothing_made and not task.earlier for task in asked)


def fold(records: Iterable[Record]) -> Run:
    """The run that these records tell of. Never raises for what is in them; a repeated record counts once.

    All of one run, as `read` gives them. A field of a wrong type counts as missing.
    """
    run = Run()
    seen: set[object] = set()
    for record in records:
        key = _key(record)
        if key in seen:
            continue
        seen.add(key)
        run.records += 1
        if run.run_id is None:
            run.run_id = _text(record, "run_id")
        if not _apply(run, record):
            run.unknown += 1
    return run


def _key(record: Record) -> object:
    """What a record and its repetition share, and no other record does; a hash, for there may be many."""
    prev, ts, mono = record.get("prev"), record.get("ts"), record.get("mono")
    if isinstance(prev, str) and prev and isinstance(ts, str) and isinstance(mono, float):
        return hash((prev, ts, mono, str(record.get("event")), str(record.get("task_id"))))
    try:
        return hash(repr(record))
    except RecursionError:
        return object()


def _apply(run: Run, record: Record) -> bool:
    event = record.get("event")
    if not isinstance(event, str):
        return False
    if event in _TASK_EVENTS:
        task_id = record.get("task_id")
        if not is_id(task_id):
            return False
        _TASK_EVENTS[event](run, record, str(task_id))
    elif event in _KEPT:
        getattr(run, _KEPT[event]).append(record)
    elif event == "run.created":
        _created(run, record)
    elif event == "run.ended":
        run.ended = record
    else:
        return False
    return True


def _created(run: Run, record: Record) -> None:
    if run.created_at is not None:
        # The first one stands: a second may only have been written by somebody else.
        return
    run.created_at = _text(record, "ts")
    run.created_by = _object(record, "by")
    run.host, run.boot_id = _text(record, "host"), _text(record, "boot_id")
    run.argv, run.cwd = _texts(record, "argv"), _text(record, "cwd")
    run.backend, run.parent_run = _text(record, "backend"), _text(record, "parent_run")
    run.labels = {name: value for name, value in (_object(record, "labels") or {}).items() if isinstance(value, str)}
    run.detached, run.on_exit = _bool(record, "detached"), _text(record, "on_exit")
    run.version = _text(record, "version")
    run.main_task = _text(record, "main_task") or run.main_task
    timeout = record.get("timeout")
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and 0 <= timeout < 2**53:
        run.timeout = float(timeout)


def _intent(run: Run, record: Record, task_id: str) -> None:
    task = _next(run, task_id)
    task.intent_at = _text(record, "ts")
    task.argv, task.backend = _texts(record, "argv"), _text(record, "backend")
    task.cwd, task.detached = _text(record, "cwd"), _bool(record, "detached")
    task.launcher = _process(record, "launcher")
    task.host, task.boot_id = _text(record, "host"), _text(record, "boot_id")
    task.branch, task.worktree = _text(record, "branch"), _text(record, "worktree")
    task.repository, task.base = _text(record, "repository"), _text(record, "base")


def _started(run: Run, record: Record, task_id: str) -> None:
    task = run.tasks.get(task_id)
    if task is None or task.state != "intent":
        task = _next(run, task_id)
    box = _object(record, "box")
    task.state = "started"
    task.argv = _texts(record, "argv") or task.argv
    task.host, task.boot_id = _text(record, "host"), _text(record, "boot_id")
    task.pid, task.start_ticks = _number(record, "pid"), _number(record, "start_ticks")
    if box is not None:
        task.box = Box(
            _text(box, "backend"),
            _text(box, "id"),
            _text(box, "cgroup"),
            _number(box, "cgroup_inode"),
            _number(box, "parent_inode"),
        )
        task.backend = task.box.backend or task.backend
    task.launcher = _process(record, "launcher") or task.launcher
    detached = _bool(record, "detached")
    task.detached = task.detached if detached is None else detached
    task.started_at = _text(record, "started_at") or _text(record, "ts")
    task.remote_id, task.harness = _text(record, "remote_id"), _text(record, "harness")
    task.branch = _text(record, "branch") or task.branch
    task.worktree = _text(record, "worktree") or task.worktree


def _exited(run: Run, record: Record, task_id: str) -> None:
    task = run.tasks.setdefault(task_id, Task(task_id))
    task.state = "exited"
    task.code, task.signal = _number(record, "code"), _number(record, "signal")
    task.outcome, task.ended_at = _text(record, "outcome"), _text(record, "ts")
    leftovers = record.get("leftovers")
    task.leftovers = leftovers if isinstance(leftovers, list) else []
    task.output_dropped = _number(record, "output_dropped") or 0


def _failed(run: Run, record: Record, task_id: str) -> None:
    task = run.tasks.setdefault(task_id, Task(task_id))
    task.state = "failed"
    task.code, task.why, task.ended_at = _number(record, "code"), _text(record, "why"), _text(record, "ts")
    task.nothing_made = record.get("nothing_made") is True


def _next(run: Run, task_id: str) -> Task:
    """A fresh task of this id; one that was there and never ended is kept in `earlier`."""
    before = run.tasks.get(task_id)
    task = Task(task_id)
    if before is not None:
        task.earlier, before.earlier = before.earlier, []
        if before.state == "started":
            task.earlier.append(before)
    run.tasks[task_id] = task
    return task


_TASK_EVENTS: dict[str, Callable[[Run, Record, str], None]] = {
    "task.intent": _intent,
    "task.started": _started,
    "task.exited": _exited,
    "task.failed_to_start": _failed,
}
_KEPT = {
    "control.set": "orders",
    "stop.rung": "rungs",
    "stop.receipt": "receipts",
    "steer.table": "steering",
    "finding": "findings",
    "note": "notes",
}


def _text(record: Record, name: str) -> str | None:
    value = record.get(name)
    return value if isinstance(value, str) else None


def _texts(record: Record, name: str) -> list[str]:
    value = record.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _number(record: Record, name: str) -> int | None:
    """A whole number that the kernel could have given: not negative, 64 bits at most."""
    value = record.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**64 else None


def _bool(record: Record, name: str) -> bool | None:
    value = record.get(name)
    return value if isinstance(value, bool) else None


def _object(record: Record, name: str) -> Record | None:
    value = record.get(name)
    return value if isinstance(value, dict) else None


def _process(record: Record, name: str) -> Process | None:
    value = _object(record, name) or {}
    pid = _number(value, "pid")
    return None if pid is None else Process(pid, _number(value, "start_ticks"))
