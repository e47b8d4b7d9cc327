"""The observer of the state directory: each run's record, read in one pass and only as deep as it needs.

An ended run is known by the last lines of its record. Of the others only the lines that tell what is open now are
decoded: the writer's lines begin alike (manifest.record), so that event and task are read off without decoding.
A line that begins otherwise is decoded as any reader would do it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any

from sandbox.control import orders
from sandbox.control.status import launcher_alive
from sandbox.kernel.identity import Identity
from sandbox.manifest.fold import Run, Task, fold
from sandbox.manifest.home import Home
from sandbox.manifest.lines import Line, open_regular, scan
from sandbox.manifest.reader import BadRecord, parse

TAIL_BYTES = 16384
TAIL_LINES = 12
QUICK_BYTES = 4 << 20
"""A larger record is read piece by piece, which takes longer and needs no more memory than its longest line."""
_HEAD = re.compile(
    rb'\{"v":1,"ts":"[^"\\]*","mono":[0-9.]+,"boot_id":(?:"[^"\\]*"|null),"host":"[^"\\]*",'
    rb'"run_id":"([^"\\]*)","task_id":(?:"([^"\\]*)"|null),"event":"([a-z_.]+)",'
)
_PASSED_OVER = frozenset({b"note", b"steer.table", b"finding", b"stop.rung", b"control.set"})
_OPENING = frozenset({b"task.intent", b"task.started"})
_CLOSING = {b"task.exited": "exited", b"task.failed_to_start": "failed"}
_KEPT_BAD = 20
_BRACE = ord("}")


@dataclass
class Recorded:
    """One run's directory as it was seen.

    `run`: the fold; of tasks that have exited, other than main, only the id and the state. `monos`: for each open
    task, CLOCK_MONOTONIC at its start. `allowances`: seconds between boundaries, where a task has one. `whole`:
    False if only the tail was read, which suffices for a run that has ended. `unreadable`: why the record could not
    be read, or "". `order`: the run's standing order (not read for a run that has ended). `launchers`: whether that
    of each open task, and of main, lives; `main_alive`: whether the recorded process of main does.
    """

    run_id: str
    run: Run = field(default_factory=Run)
    bad: list[BadRecord] = field(default_factory=list)
    bad_count: int = 0
    missing: bool = False
    unreadable: str = ""
    whole: bool = True
    order: orders.Order | None = None
    monos: dict[str, float] = field(default_factory=dict)
    allowances: dict[str, float] = field(default_factory=dict)
    launchers: dict[str, bool | None] = field(default_factory=dict)
    main_alive: bool | None = None

    @property
    def ended(self) -> bool:
        return self.run.ended is not None

    @property
    def launcher(self) -> bool | None:
        """Is any launcher of an open task alive? None: none is recorded, or could not tell."""
        answers = set(self.launchers.values())
        return True if True in answers else False if answers == {False} else None


def read_runs(home: Home, only: str | None = None) -> dict[str, Recorded]:
    """Every run that has a directory, or the one named. Raises AgentboxError where the home can't be listed."""
    ids = home.runs() if only is None else [only] if _is_there(home, only) else []
    return {run_id: read_run(home, run_id) for run_id in ids}


def reread(home: Home, run_ids: list[str]) -> dict[str, Recorded]:
    """These runs whole, as they are now; those without a directory left out."""
    return {run_id: read_run(home, run_id, whole=True) for run_id in run_ids if _is_there(home, run_id)}


def _is_there(home: Home, run_id: str) -> bool:
    """Has the run a directory? Where that can't be told, reading its record will say why."""
    try:
        return stat.S_ISDIR(os.stat(home.run_dir(run_id).path).st_mode)
    except OSError as error:
        return error.errno not in (errno.ENOENT, errno.ENOTDIR)


def read_run(home: Home, run_id: str, *, whole: bool = False) -> Recorded:
    """One run; `whole`: read all of it even if it has ended. Never raises."""
    seen = Recorded(run_id)
    try:
        fd = open_regular(home.run_dir(run_id).manifest, os.O_RDONLY)
    except FileNotFoundError:
        seen.missing = True
        return _with_order(home, seen)
    except OSError as error:
        seen.unreadable = error.strerror or str(error)
        return _with_order(home, seen)
    try:
        ended = None if whole else _ended_in_tail(fd, run_id)
        if ended is not None:
            seen.run, seen.whole = Run(run_id=run_id, ended=ended), False
            return seen
        _read_all(fd, seen)
    except OSError as error:
        seen.unreadable = error.strerror or str(error)
    finally:
        os.close(fd)
    return _with_order(home, seen)


def worktrees_of(home: Home, run_id: str) -> list[Task]:
    """The tasks of a run whose start names a worktree, looked for without decoding anything else. Never raises."""
    try:
        fd = open_regular(home.run_dir(run_id).manifest, os.O_RDONLY)
    except OSError:
        return []
    try:
        size = os.fstat(fd).st_size
        if size <= QUICK_BYTES and b'"worktree":"' not in os.pread(fd, size, 0):
            return []
        starts = (line.data for line in scan(fd) if line.data and b'"worktree":"' in line.data)
        return list(fold(map(_decoded, starts)).tasks.values())
    except OSError:
        return []
    finally:
        os.close(fd)


def _with_order(home: Home, seen: Recorded) -> Recorded:
    seen.order = orders.read_order(home.run_dir(seen.run_id).control)
    for task in seen.run.tasks.values():
        if task.state in ("intent", "started") or task.task_id == seen.run.main_task:
            seen.launchers[task.task_id] = launcher_alive(task)
    main = seen.run.tasks.get(seen.run.main_task)
    if main and main.pid is not None and main.start_ticks is not None and main.boot_id:
        seen.main_alive = Identity(main.boot_id, main.pid, main.start_ticks).alive()
    return seen


def _ended_in_tail(fd: int, run_id: str) -> dict[str, Any] | None:
    """The run.ended record, if it is among the last lines with nothing started after it."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES))
    if not tail.endswith(b"\n"):
        return None
    for line in tail.rsplit(b"\n", TAIL_LINES + 1)[:0:-1]:
        head = _HEAD.match(line) if line else None
        if head is None:
            if line:
                return None
            continue
        if head[1].decode("ascii", "replace") != run_id or head[3] in _OPENING:
            return None
        if head[3] == b"run.ended":
            return _decoded(line)
    return None


class _Kept:
    """The raw lines that the fold needs."""

    def __init__(self) -> None:
        self.created: bytes | dict[str, Any] | None = None
        self.ended: bytes | dict[str, Any] | None = None
        self.receipts: list[bytes | dict[str, Any]] = []
        self.tasks: dict[str, list[bytes | dict[str, Any]]] = {}
        self.closed: dict[str, str] = {}
        self.main = "main"
        self.opened: list[bytes | dict[str, Any]] = []

    def take(self, event: bytes, task_id: str | None, line: bytes | dict[str, Any]) -> None:
        if event in _OPENING and task_id:
            self.tasks.setdefault(task_id, []).append(line)
            if task_id == self.main:
                self.opened = [*self.opened[-1:], line]
            self.closed.pop(task_id, None)
        elif event in _CLOSING and task_id:
            # How main began is told later, too; of the others it is of no more interest.
            self.tasks[task_id] = [*(self.opened if task_id == self.main else ()), line]
            self.closed[task_id] = _CLOSING[event]
        elif event == b"run.created":
            if self.created is None:
                self.created = line
                self.main = str(_decoded(line).get("main_task") or "main")
        elif event == b"run.ended":
            self.ended = line
        elif event == b"stop.receipt":
            self.receipts = [*self.receipts[-1:], line]


def _read_all(fd: int, seen: Recorded) -> None:
    kept = _read_quickly(fd, seen.run_id.encode())
    if kept is None:
        kept = _Kept()
        for line in scan(fd):
            _read_slowly(line, seen, kept)
    _fold(seen, kept)


def _read_quickly(fd: int, run_id: bytes) -> _Kept | None:
    """What the fold needs, if every line is as the writer writes it and the file is not large; else None."""
    size = os.fstat(fd).st_size
    data = os.pread(fd, size, 0) if size <= QUICK_BYTES else b""
    if not data.endswith(b"}\n") or len(data) != size:
        return None
    kept = _Kept()
    match, passed_over = _HEAD.match, _PASSED_OVER
    for line in data[:-1].split(b"\n"):
        head = match(line)
        if head is None or line[-1] != _BRACE:
            return None
        found, task_id, event = head.groups()
        if found != run_id:
            return None
        if event not in passed_over:
            kept.take(event, task_id.decode("ascii", "replace") if task_id else None, line)
    return kept


def _read_slowly(line: Line, seen: Recorded, kept: _Kept) -> None:
    head = _HEAD.match(line.data) if line.data and line.ended and line.data.endswith(b"}") else None
    if head is not None and head[1] == seen.run_id.encode():
        if head[3] not in _PASSED_OVER:
            kept.take(head[3], head[2].decode("ascii", "replace") if head[2] else None, line.data or b"")
        return
    record, reason = parse(line)
    if record is not None and record.get("run_id") != seen.run_id:
        record, reason = None, "a record of another run"
    if record is None:
        seen.bad_count += 1
        if len(seen.bad) < _KEPT_BAD:
            seen.bad.append(BadRecord(line.offset, line.length, reason))
        return
    event, task_id = record.get("event"), record.get("task_id")
    kept.take(str(event).encode(), task_id if isinstance(task_id, str) else None, record)


def _fold(seen: Recorded, kept: _Kept) -> None:
    lines = [kept.created, *kept.receipts, kept.ended]
    records = [_decoded(line) for line in lines if line is not None]
    for task_id, own in kept.tasks.items():
        if task_id in kept.closed and task_id != kept.main:
            continue
        decoded = [_decoded(line) for line in own]
        records += decoded
        for record in decoded:
            _note_clock(seen, task_id, record)
    seen.run = fold(records)
    seen.run.run_id = seen.run_id
    for task_id in kept.closed.keys() - seen.run.tasks.keys():
        seen.run.tasks[task_id] = Task(task_id, kept.closed[task_id])


def _note_clock(seen: Recorded, task_id: str, record: dict[str, Any]) -> None:
    for name, where in (("mono", seen.monos), ("allowance", seen.allowances)):
        value = record.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            where[task_id] = float(value)


def _decoded(line: bytes | dict[str, Any]) -> dict[str, Any]:
    if isinstance(line, dict):
        return line
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
