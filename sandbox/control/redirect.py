"""Changing part of a fleet's plan: keep is not touched at all, modify gets its delta, drop ends at a boundary."""

from __future__ import annotations

import fnmatch
import json
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandbox.control import orders
from sandbox.control.ladder import abort
from sandbox.control.request import carry_out, ended_unrecorded, target_of
from sandbox.control.status import status
from sandbox.control.stop import Stop
from sandbox.control.table import Row
from sandbox.control.targets import Target
from sandbox.control.under_way import under_way
from sandbox.errors import AgentboxError, Refused
from sandbox.harness.beat import marks
from sandbox.manifest.home import Home, RunDir, fsync_directory, open_private
from sandbox.manifest.record import whoami
from sandbox.manifest.writer import Writer


@dataclass
class Redirected:
    """`dropped`: the stop of each dropped task; `delivered`: tasks whose delta waits for their next boundary.

    `no_gate`: those of them that have passed no gate so far, and so may never read it.
    """

    kept: list[str] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    no_gate: list[str] = field(default_factory=list)
    dropped: list[Stop] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def in_flight(home: Home, run_id: str) -> list[str]:
    """The tasks that live: all but the main one, which is the coordinator's own, ended and failed ones."""
    one = status(home, run_id)
    if not one.live:
        raise AgentboxError(f"run {run_id} is not alive ({one.state})", fix="there is nothing to redirect")
    ours = [t for t in one.run.tasks.values() if t.state in ("intent", "started") and t.task_id != one.run.main_task]
    return sorted(task.task_id for task in ours if not ended_unrecorded(home, run_id, task))


def draft(home: Home, run_id: str, touches: list[str]) -> dict[str, Any]:
    """A table to fill in: keep for all, or modify where a task has touched a file that a pattern names."""
    rows = []
    for task_id in in_flight(home, run_id):
        seen = touched(home, run_id, task_id) if touches else []
        files = [f for f in seen if any(fnmatch.fnmatch(f, p) for p in touches)]
        row: dict[str, Any] = {"task": task_id, "action": "modify" if files else "keep"}
        if files:
            row |= {"delta": "", "touched": files}
        rows.append(row)
    return {"tasks": rows}


def touched(home: Home, run_id: str, task_id: str) -> list[str]:
    """Files changed in the task's worktree since its base; [] where it has none."""
    task = status(home, run_id).run.tasks.get(task_id)
    if not task or not task.worktree or not os.path.isdir(task.worktree):
        return []
    from sandbox.worktree.state import changed_files

    return changed_files(task.worktree)


def redirect(home: Home, run_id: str, rows: list[Row], grace: float, term: float) -> Redirected:
    """Carry the table out: record it, hand out the deltas, end what is dropped. Raises AgentboxError."""
    run = home.run_dir(run_id)
    result = Redirected()
    with under_way(run):
        refuse_under_stop(run)
        record = {"tasks": [vars(row) for row in rows]}
        writer = Writer(run.manifest, run_id, by=whoami())
        writer.append("steer.table", sync=True, table=record)
        for row in rows:
            if row.action == "keep":
                result.kept.append(row.task)
            elif row.action == "modify":
                hand_out(run, row)
                result.delivered.append(row.task)
                if not marks(run.beat(row.task)):
                    result.no_gate.append(row.task)
        _drop(home, run_id, [row for row in rows if row.action == "drop"], result, grace, term)
    return result


def hand_out(run: RunDir, row: Row) -> None:
    """Append the delta to the task's steer file, durably; the gate delivers each line once."""
    line = json.dumps({"task": row.task, "delta": row.delta}).encode() + b"\n"
    path = run.steer(row.task)
    try:
        fd = open_private(path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.write(fd, line) != len(line):
                raise OSError(28, os.strerror(28))
            os.fsync(fd)
        finally:
            os.close(fd)
        fsync_directory(os.path.dirname(path))
    except OSError as error:
        raise AgentboxError(f"{path} cannot be written: {error.strerror}", fix="free some space") from None


def _drop(home: Home, run_id: str, rows: list[Row], result: Redirected, grace: float, term: float) -> None:
    """STOP for all of them first: the grace of all begins there. Then each down the rest of the ladder."""
    until, by, ours = time.monotonic() + grace, f"uid {os.getuid()} pid {os.getpid()}", set()
    for row in rows:
        path = home.run_dir(run_id).task_order(row.task)
        # Each waits for the others before it, whose launchers are not to end it meanwhile.
        order, _ = orders.order_stop(path, reason=f"dropped: {row.why}", by=by, patience=grace + len(rows) * term)
        if order.by == by:
            ours.add(row.task)
    for row in rows:
        target = target_of(home, run_id, row.task)
        act = partial(_end, ours=row.task in ours, grace=max(0.0, until - time.monotonic()), term=term)
        stops = carry_out(home, [target], f"dropped: {row.why}", act)
        result.dropped += stops
        if stops[0].proof == "empty":
            _abandon(home, run_id, row.task, result)


def _end(target: Target, stop: Stop, *, ours: bool, grace: float, term: float) -> Stop:
    """Down the ladder. `ours`: the order that stands already is this redirect's own, and has to be recorded with it."""
    stop.already = stop.already and not ours
    return abort(target, stop, grace, term)


def _abandon(home: Home, run_id: str, task_id: str, result: Redirected) -> None:
    task = status(home, run_id).run.tasks.get(task_id)
    if not task or not task.worktree or not task.branch:
        return
    from sandbox.worktree.branches import abandon

    try:
        result.branches[task_id] = abandon(task.worktree, run_id, task_id)
    except AgentboxError as error:
        result.problems.append(f"{task_id}: {error}")


def refuse_under_stop(run: RunDir) -> None:
    """Raises Refused where the run's order is STOP, which is final."""
    order = orders.read_order(run.control)
    if order.word == "STOP":
        raise Refused(f"run {run.run_id} is under order STOP ({order.reason})", fix="start a new run")
