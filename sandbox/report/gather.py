"""The facts of a report, gathered: record, kernel, marks, git, and a fresh look for what should not be alive."""

from __future__ import annotations

import os
from typing import Any

from sandbox.control.status import Status, status
from sandbox.errors import AgentboxError
from sandbox.manifest.fold import Run, Task
from sandbox.manifest.home import Home
from sandbox.manifest.verify import verify
from sandbox.reconcile.look import look
from sandbox.report.calls import add_calls
from sandbox.report.files import Walks, add_worktree
from sandbox.report.model import Finding, Report, Stop, TaskReport, Time
from sandbox.report.stops import date_stops, orders_of, stops_of, text, who
from sandbox.report.summary import summary


def gather(home: Home, run_id: str, now: float) -> Report:
    """All that can be told of a run at `now` (seconds since 1970). Raises AgentboxError for no id alone."""
    one = status(home, run_id)
    run = one.run
    report = Report(run_id, Time(now), one.state, one.why, one.proof)
    _add_run(report, run)
    report.record = _record(home, run_id, report, one)
    report.orders = orders_of(run, home.run_dir(run_id))
    report.stops = stops_of(run)
    date_stops(report.orders, report.stops)
    _add_times(report, run)
    walks = Walks(report.created_at or 0.0, home.path)
    report.tasks = [_task(home, one, task, report, walks) for task in run.tasks.values()]
    _add_processes(report)
    _add_findings(report, home, run)
    _add_unknown(report, one)
    report.summary = summary(report)
    return report


def _add_run(report: Report, run: Run) -> None:
    report.argv, report.cwd, report.host, report.backend = run.argv, run.cwd, run.host, run.backend
    report.labels, report.created_at = run.labels, Time.of(run.created_at)
    by = run.created_by or {}
    report.created_by = who(run, f"uid {by.get('uid')} pid {by.get('pid')}") if by else ""
    ended = run.ended or {}
    report.ended_at, report.outcome = Time.of(ended.get("ts")), text(ended, "outcome")
    code = ended.get("code")
    report.code = code if isinstance(code, int) else None


def _record(home: Home, run_id: str, report: Report, one: Status) -> str:
    """`whole`, `changed` or `not known`."""
    try:
        verdict = verify(home.run_dir(run_id).manifest, run_id=run_id)
    except AgentboxError as error:
        report.not_known.append(f"whether the record is whole: {error}")
        return "not known"
    report.not_known += [f"what the record said at byte {bad.offset}: {bad.what}" for bad in verdict.problems[:5]]
    if one.bad_records:
        report.not_known.append(f"what {one.bad_records} lines of the record say: they are no records")
    return "not known" if verdict.missing else "whole" if verdict.whole else "changed"


def _add_times(report: Report, run: Run) -> None:
    whole = next((stop for stop in report.stops if stop.task_id is None), None)
    if whole:
        report.stopped_at, report.empty_at = whole.at, whole.empty_at
    elif report.ended_at:
        report.stopped_at = report.ended_at


def _task(home: Home, one: Status, task: Task, report: Report, walks: Walks) -> TaskReport:
    found = TaskReport(task.task_id, task.state, task.argv, Time.of(task.started_at))
    found.outcome, found.code, found.backend, found.pid = task.outcome, task.code, task.backend, task.pid
    found.branch, found.worktree = task.branch, task.worktree
    _add_end(found, one, task, report.stops)
    add_calls(found, home.run_dir(one.run_id).beat(task.task_id))
    add_worktree(found, one.run_id, task.repository, task.base)
    _add_files(found, one.run, report.stops, walks, report.made_at)
    if task.state == "failed":
        found.not_known = [f"nothing: it was not started ({task.why or 'no reason recorded'})"]
    if task.earlier:
        found.not_known.append(f"the ends of {len(task.earlier)} earlier starts of this id")
    return found


def _add_end(found: TaskReport, one: Status, task: Task, stops: list[Stop]) -> None:
    """When it stopped, and by what: the first of its own end and of a stop of it or of the run."""
    ended = Time.of(task.ended_at)
    by_itself = task.outcome not in ("killed", "stopped")
    if task.state == "failed":
        found.stopped_by = "not started"
    elif ended and by_itself:
        found.stopped_at, found.stopped_by = ended, "timeout" if task.outcome == "timeout" else "ended"
    else:
        covering = [stop for stop in stops if stop.task_id in (None, task.task_id) and stop.at]
        first = min(covering, key=lambda stop: stop.at or 0.0, default=None)
        if first is None:
            found.stopped_at, found.stopped_by = ended, "killed" if ended else "running" if one.live else "unknown"
        elif task.outcome == "stopped":
            # Who leaves under a stop is gone before the kill comes: the exit's record may be later, never earlier.
            found.stopped_at = min(filter(None, (ended, first.frozen_at, first.empty_at)), default=None)
            terms = [rung.at for stop in covering for rung in stop.rungs if rung.rung == "term" and rung.at]
            termed = bool(terms and found.stopped_at and min(terms) <= found.stopped_at)
            found.stopped_by = "term" if termed else "left"
        else:
            found.stopped_at, found.stopped_by = first.at, "frozen" if first.frozen_at else "killed"
    if found.stopped_by == "unknown":
        found.not_known.append("when and where it stopped: no exit and no stop of it is recorded")


def _add_files(found: TaskReport, run: Run, stops: list[Stop], walks: Walks, now: float) -> None:
    if found.state == "failed" or (found.stopped_at is None and found.stopped_by != "running"):
        return
    place = found.worktree or _directory(found, run, stops)
    if found.backend == "docker" and not found.worktree:
        found.not_known.append("which files it changed: they are in its container")
    elif place is None or not os.path.isdir(place):
        found.not_known.append(
            "which files it changed: " + (f"{place} is gone" if place else "where it worked is not recorded")
        )
    else:
        found.files = walks.files(place, found.started_at or walks.since, found.stopped_at or now)
        if found.stopped_at is None:
            found.files.after = []
        if not found.files.whole:
            found.not_known.append(f"all of the files that it changed: {place} could not be walked to its end")
    if not found.worktree:
        found.not_known.append("its checkpoint and what it left uncommitted: it has no worktree")


def _directory(found: TaskReport, run: Run, stops: list[Stop]) -> str | None:
    """Where its first process was when it was stopped, else where it was started."""
    seen = [one.cwd for stop in stops for one in stop.processes if one.pid == found.pid and one.cwd]
    start = run.tasks[found.task_id].cwd or (run.cwd if found.task_id == run.main_task else None)
    return seen[0] if seen else start


def _add_processes(report: Report) -> None:
    tasks = {task.task_id: task for task in report.tasks}
    seen: set[tuple[int, Any]] = set()
    for stop in report.stops:
        for one in stop.processes:
            key = (one.pid, tuple(one.argv or ()))
            if key not in seen:
                seen.add(key)
                task = tasks.get(one.task_id or "")
                (task.processes if task else report.unplaced).append(one)
    if report.unplaced:
        report.not_known.append(f"whose {len(report.unplaced)} of the ended processes were")


def _add_findings(report: Report, home: Home, run: Run) -> None:
    """Those of the record, and those of a look now."""
    for record in run.findings:
        kind, what = text(record, "kind") or "?", text(record, "what") or ""
        severity, command = text(record, "severity") or "warning", text(record, "command") or ""
        at = Time.of(record.get("ts"))
        report.findings.append(Finding(kind, severity, text(record, "task_id"), what, at, command, False))
    seen = look(home, report.run_id)
    for one in seen.findings:
        since = Time.of(one.since)
        report.findings.append(Finding(one.kind, one.severity, one.task_id, one.what, since, one.command, True))
    for missing in seen.survey.not_asked:
        report.not_known.append(f"whether anything of it is alive now: {missing.observer}: {missing.why}")


def _add_unknown(report: Report, one: Status) -> None:
    if one.proof == "unknown":
        report.not_known.append(f"whether it is alive now: {one.why}")
    if report.created_at is None:
        report.not_known.append("what was started, when and by whom: no record of its creation can be read")
    for stop in report.stops:
        name = f"task {stop.task_id}" if stop.task_id else "the run"
        if stop.proof != "empty":
            report.not_known.append(f"that {name} is dead: its stop ended as {stop.proof}")
        unread = [one.pid for one in stop.processes if one.argv is None]
        if unread:
            report.not_known.append(
                f"what the processes {', '.join(map(str, unread[:20]))} were: they could not be read"
            )
    if not report.stops and report.state in ("lost", "unknown"):
        report.not_known.append("where it stopped: no stop and no exit of it is recorded")
