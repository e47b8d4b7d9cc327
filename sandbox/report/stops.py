"""What was ordered and what came of it, out of the records: orders, and for each target one stop with its rungs."""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Iterable
from typing import Any

from sandbox.control import orders
from sandbox.manifest.fold import Run, Task
from sandbox.manifest.home import RunDir
from sandbox.manifest.redact import redact_text
from sandbox.report.model import Order, Process, Rung, Stop, Time

Record = dict[str, Any]


ACTIONS = ("keep", "modify", "drop")
DELTA_MOST = 400


def orders_of(run: Run, files: RunDir) -> list[Order]:
    """All that the record holds: orders, rows of redirects, and stops of tasks whose receipt alone tells of them.

    And the one that stands if the record lacks it (a time-out's, one made by hand).
    """
    found = [_order(run, record) for record in run.orders]
    stopped = {order.task_id for order in found if order.order == "STOP"}
    found += [_of_receipt(stop) for stop in stops_of(run) if stop.task_id and stop.task_id not in stopped]
    found += [row for record in run.steering for row in _rows(run, record)]
    standing = orders.read_order(files.control)
    known = {(order.task_id, order.generation) for order in found}
    by_launcher = standing.by.startswith("launcher") and (run.ended or {}).get("outcome") == "exited"
    if standing.trusted and standing.generation and (None, standing.generation) not in known and not by_launcher:
        at, by = Time.of(standing.at), who(run, standing.by)
        if at or standing.word != "RUN":
            found.append(Order(at, standing.word, None, standing.reason, by, standing.generation))
    return found


def _order(run: Run, record: Record) -> Order:
    generation = record.get("generation")
    by, inside = _by(run, record)
    return Order(
        Time.of(record.get("ts")),
        text(record, "order") or "not known",
        text(record, "task_id"),
        text(record, "reason") or "",
        by,
        generation if isinstance(generation, int) else None,
        inside,
    )


def _of_receipt(stop: Stop) -> Order:
    return Order(stop.ordered_at, "STOP", stop.task_id, stop.reason, stop.by)


def _rows(run: Run, record: Record) -> Iterable[Order]:
    """The rows of one redirect's table: the reason is why for drop, what changes for modify."""
    table = record.get("table")
    by, inside = _by(run, record)
    for row in _objects(table, "tasks") if isinstance(table, dict) else []:
        action, reason, delta = text(row, "action"), text(row, "why") or "", row.get("delta")
        if action not in ACTIONS:
            continue
        if action == "modify":
            reason = _delta(delta)
        yield Order(Time.of(record.get("ts")), action, text(row, "task"), reason, by, None, inside)


def _delta(delta: object) -> str:
    try:
        return redact_text(delta if isinstance(delta, str) else json.dumps(delta, ensure_ascii=False))[:DELTA_MOST]
    except RecursionError:
        return ""


def _by(run: Run, record: Record) -> tuple[str, bool | None]:
    """Who, and whether from inside of a box."""
    by = record.get("by")
    by = by if isinstance(by, dict) else {}
    inside = by.get("inside")
    who_by = f"uid {by.get('uid')} pid {by.get('pid')}" if by else ""
    return who(run, who_by), inside if isinstance(inside, bool) else None


def who(run: Run, by: str) -> str:
    """`uid 0 pid 4711` with the user's name, where it is this machine's to tell."""

    def named(match: re.Match[str]) -> str:
        try:
            return f"{match[0]} ({pwd.getpwuid(int(match[1])).pw_name})"
        except (KeyError, OverflowError):
            return match[0]

    here = run.host in (None, os.uname().nodename)
    return re.sub(r"\buid (\d{1,10})\b", named, by) if here else by


def stops_of(run: Run) -> list[Stop]:
    """A stop a target (the run, or a task), in the order of their receipts; repeated ones are one with the first."""
    found: dict[str | None, Stop] = {}
    for receipt in run.receipts:
        stop = _stop(run, receipt)
        known = found.setdefault(stop.task_id, stop)
        if known is not stop:
            _join(known, stop)
    return list(found.values())


def date_stops(found: list[Order], stops: list[Stop]) -> None:
    """A stop's order is recorded after the kill: its own time is in the receipt."""
    for order in found:
        for stop in stops:
            if order.order == "STOP" and stop.task_id == order.task_id and stop.ordered_at:
                order.at = min(order.at or stop.ordered_at, stop.ordered_at)
    found.sort(key=lambda order: order.at or 0.0)


def _join(first: Stop, again: Stop) -> None:
    if first.proof != "empty":
        first.empty_at, first.survivors = again.empty_at, again.survivors
        first.proof = again.proof
        first.frozen_at = first.frozen_at or again.frozen_at
    seen = {(one.pid, tuple(one.argv or ())) for one in first.processes}
    first.processes += [one for one in again.processes if (one.pid, tuple(one.argv or ())) not in seen]
    first.rungs += again.rungs
    first.escapees += again.escapees
    first.warnings += [line for line in again.warnings if line not in first.warnings]


def _stop(run: Run, receipt: Record) -> Stop:
    task_id, proof = text(receipt, "task_id"), text(receipt, "proof")
    lists = {name: list(_processes(run, receipt, name)) for name in ("processes", "survivors", "escapees")}
    rungs = [
        Rung(Time.of(rung.get("at")), text(rung, "rung") or "?", task_id, _number(rung.get("processes")))
        for rung in _objects(receipt, "rungs")
    ]
    warnings = receipt.get("warnings")
    return Stop(
        task_id,
        Time.of(receipt.get("ordered_at")),
        Time.of(receipt.get("frozen_at")),
        Time.of(receipt.get("empty_at")),
        proof if proof in ("empty", "alive") else "unknown",
        who(run, text(receipt, "asked_by") or ""),
        text(receipt, "reason") or "",
        rungs,
        warnings=[line for line in warnings if isinstance(line, str)] if isinstance(warnings, list) else [],
        **lists,
    )


def _processes(run: Run, receipt: Record, name: str) -> Iterable[Process]:
    """A process belongs to the task whose box it was in, and else to the one whose first process it comes from."""
    seen = _objects(receipt, name)
    parents = {one["pid"]: one.get("ppid") for one in seen if isinstance(one.get("pid"), int)}
    for one in seen:
        pid, argv, age = _number(one.get("pid")), one.get("argv"), one.get("age")
        if pid is None:
            continue
        yield Process(
            pid,
            [word for word in argv if isinstance(word, str)] if isinstance(argv, list) else None,
            text(one, "comm"),
            float(age) if isinstance(age, (int, float)) and not isinstance(age, bool) and 0 <= age < 1e10 else None,
            text(one, "state"),
            text(one, "cwd"),
            text(receipt, "task_id") or _by_box(run, text(one, "cgroup")) or _by_parent(run, pid, parents),
        )


def _by_box(run: Run, cgroup: str | None) -> str | None:
    if not cgroup:
        return None
    fits = [(len(path), task.task_id) for task in run.tasks.values() if (path := _path(task)) and _below(cgroup, path)]
    return max(fits)[1] if fits else None


def _path(task: Task) -> str | None:
    return task.box.cgroup if task.box else None


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def _by_parent(run: Run, pid: int, parents: dict[int, Any]) -> str | None:
    first = {task.pid: task.task_id for task in run.tasks.values() if task.pid}
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        if pid in first:
            return first[pid]
        seen.add(pid)
        above = parents[pid]
        if not isinstance(above, int):
            return None
        pid = above
    return None


def text(record: Record, name: str) -> str | None:
    value = record.get(name)
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _objects(record: Record, name: str) -> list[Record]:
    value = record.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
