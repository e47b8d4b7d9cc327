"""Where it stopped, in one sentence."""

from __future__ import annotations

from sandbox.errors import number_of
from sandbox.report.model import Report, Time


def summary(report: Report) -> str:
    """Plain words; ids and call names are as they were recorded, so whoever shows it has to neutralise it."""
    said = _what(report)
    if report.alive == "alive" and report.empty_at:
        said += "; BUT something of it is alive now"
    return said


def _what(report: Report) -> str:
    whole = next((stop for stop in report.stops if stop.task_id is None), None)
    if whole is None:
        return _unstopped(report)
    if whole.proof == "alive":
        left = number_of(len(whole.survivors), "process")
        return f"NOT stopped: {left} survived the stop ordered at {moment(whole.ordered_at)}"
    if whole.proof == "unknown":
        return f"a stop was ordered at {moment(whole.ordered_at)}; whether it is dead could not be proven"
    if whole.frozen_at is None:
        if not whole.processes and report.ended_at and whole.ordered_at and report.ended_at < whole.ordered_at:
            return f"{_by_itself(report)}; the stop at {moment(whole.ordered_at)} found it empty"
        if any(task.stopped_by == "killed" for task in report.tasks):
            between = f"between {moment(whole.ordered_at)} and {clock(whole.empty_at)}"
            return f"killed {between} without being frozen, {_in_flight(report)}; empty, proven"
        how = "ended after SIGTERM" if any(task.stopped_by == "term" for task in report.tasks) else "left by itself"
        return f"{how} under the stop, {_in_flight(report)}; empty at {moment(whole.empty_at)}, proven"
    return f"stopped at {moment(whole.frozen_at)}, {_in_flight(report)}; empty at {clock(whole.empty_at)}, proven"


def _unstopped(report: Report) -> str:
    if report.outcome == "timeout":
        return f"ended by its time-out at {moment(report.ended_at)}, {_in_flight(report)}{_left(report)}"
    if report.ended_at:
        return _by_itself(report) + _left(report)
    if report.alive == "alive" or report.state in ("running", "starting", "paused"):
        return f"{report.state}, not stopped; {_in_flight(report)}"
    why = f" ({report.why})" if report.why else ""
    if report.state == "not started":
        return f"not started{why}"
    return f"{report.state}{why}: where it stopped is not known"


def _by_itself(report: Report) -> str:
    how = {"killed": "was killed", "oom": "was killed for lack of memory", "signaled": "ended by a signal"}
    said = how.get(report.outcome or "", "ended by itself")
    code = "not known" if report.code is None else report.code
    return f"{said} at {moment(report.ended_at)} with exit status {code}"


def _left(report: Report) -> str:
    """What the main command's end says nothing of."""
    known = {"empty": "", "alive": "; something of it is alive now"}
    return known.get(report.alive, "; whether something of it is alive is not known")


def _in_flight(report: Report) -> str:
    calls = report.in_flight
    there = [task for task in report.tasks if task.stopped_by not in ("ended", "not started")]
    gates = [task for task in there if task.gate]
    without = len(there) - len(gates)
    if not gates:
        return "in which call is not known (no gate)"
    if not calls:
        said = "between two calls"
    elif len(calls) == 1:
        (task, call) = calls[0]
        said = f"in {call.name}" + (f" of task {task.task_id}" if len(report.tasks) > 1 else "")
    else:
        said = f"in {number_of(len(calls), 'call')} of {number_of(len({task.task_id for task, _ in calls}), 'task')}"
    return said + (f" (and {number_of(without, 'task')} without a gate)" if without else "")


def moment(at: Time | None) -> str:
    """`2026-03-02 10:14:07.118 UTC`."""
    return "a time not known" if at is None else f"{str(at)[:23].replace('T', ' ')} UTC"


def clock(at: Time | None) -> str:
    """`10:14:07.118`."""
    return "a time not known" if at is None else str(at)[11:23]
