"""The report for a terminal or a pipe: the first line says where it stopped; nothing in it can move the cursor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sandbox.cli.table import seconds_text, shorten
from sandbox.errors import number_of, printable
from sandbox.manifest.redact import command_line
from sandbox.report.model import Call, Order, Process, Report, Stop, TaskReport, Time
from sandbox.report.summary import clock, moment

WIDTH = 100
LONGEST = 500
NAMES = 8
LABEL = 12


def told(report: Report) -> str:
    """The whole report."""
    lines = [f"{report.run_id}: {report.summary}", *_run(report)]
    for task in report.tasks:
        what = "" if task.argv == report.argv else command_line(task.argv, "command not known")
        lines += ["", f"task {task.task_id}  {shorten(what, WIDTH)}".rstrip(), *_task(task)]
    if report.unplaced:
        lines += ["", "of no task that is known", *_many("ended", [process_text(one) for one in report.unplaced])]
    if report.not_known:
        lines += ["", "not known", *(f"  {line}" for line in report.not_known)]
    return "".join(f"{shorten(printable(line), LONGEST)}\n" for line in lines)


def _run(report: Report) -> Iterator[str]:
    if report.argv:
        where = f" in {report.cwd}" if report.cwd else ""
        yield _labelled("command", shorten(command_line(report.argv, None), WIDTH) + where)
    started = [moment(report.created_at), f"by {report.created_by}" if report.created_by else ""]
    on = f"on {report.host} ({report.backend or 'backend not known'})" if report.host else ""
    yield _labelled("started", " ".join(filter(None, [*started, on])))
    yield from _many("asked", orders_text(report.orders))
    for stop in report.stops:
        yield _labelled("stop", stop_text(stop))
        yield from (_labelled("warning", line) for line in stop.warnings)
        yield from _many("survivor", [process_text(one) for one in stop.survivors])
        yield from _many("escapee", [process_text(one) for one in stop.escapees])
    alive = {"empty": "nothing of it is alive", "alive": "something of it is alive"}
    yield _labelled("now", f"{alive.get(report.alive, 'whether it is alive is not known')}; record {report.record}")
    if not report.findings:
        yield _labelled("findings", "none")
    for one in report.findings:
        when = "now" if one.now else clock(one.at)
        task = f" of task {one.task_id}" if one.task_id else ""
        yield _labelled("finding", f"{one.severity} {one.kind}{task} ({when}): {one.what}")


def orders_text(orders: Sequence[Order]) -> list[str]:
    """A line each; what one redirect keeps stands in one."""
    found: dict[tuple[object, ...], list[Order]] = {}
    for number, order in enumerate(orders):
        found.setdefault((order.at, order.by, order.inside) if order.order == "keep" else (number,), []).append(order)
    return [order_text(same[0], [one.task_id or "?" for one in same]) for same in found.values()]


def order_text(order: Order, tasks: Sequence[str] = ()) -> str:
    """`STOP at 10:14:07.115 by uid 0 (root) pid 4711: wrong branch`. `tasks`: all that it is of, if of more."""
    several = f" of tasks {', '.join(tasks)}"
    target = several if len(tasks) > 1 else f" of task {order.task_id}" if order.task_id else ""
    by = f" by {order.by}" if order.by else " by whom is not known"
    inside = ", from inside of a box" if order.inside else ""
    return f"{order.order}{target} at {clock(order.at)}{by}{inside}" + (f": {order.reason}" if order.reason else "")


def stop_text(stop: Stop) -> str:
    """The rungs, each by its distance from the order, and the two moments that count."""
    start = stop.ordered_at
    steps = [(rung.at, rung.rung) for rung in stop.rungs if rung.rung != "order"]
    steps += [(stop.frozen_at, "frozen"), (stop.empty_at, "empty")]
    shown = [f"{name} {after(at, start)}" for at, name in sorted(steps, key=_when) if at]
    target = f"of task {stop.task_id} " if stop.task_id else ""
    proof = {"empty": "proven empty", "alive": "SURVIVORS"}.get(stop.proof, "not proven")
    by = f" by {stop.by}" if stop.by and stop.task_id else ""
    why = f"; {stop.reason}" if stop.reason and stop.task_id else ""
    met = number_of(len(stop.processes), "process")
    return f"{target}ordered {clock(start)}{by}, {', '.join(shown)}; {proof}, {met} met{why}"


def _when(step: tuple[Time | None, str]) -> float:
    return step[0] or 0.0


def after(at: Time | None, start: Time | None) -> str:
    """`+2.3ms`, `+31.2s`: the distance of two moments.

    A freeze need not wait for its order's text: an emergency stop acts as soon as the file is there.
    """
    if at is None or start is None:
        return "at a time not known"
    apart = at - start
    if apart < 0:
        return "before the order was written"
    return f"{apart * 1000:+.1f}ms" if abs(apart) < 1 else f"{apart:+.1f}s"


def _task(task: TaskReport) -> Iterator[str]:
    yield _labelled("stopped", stopped_text(task))
    if task.gate:
        word = "in flight" if task.ends_marked else "no end seen"
        calls = [call_text(call, task.stopped_at) for call in task.in_flight]
        yield from _many(word, calls or ["no call"])
        yield _labelled("finished", finished_text(task))
        if task.last_boundary:
            words = {"call": "began", "tick": "finished", "quiet": "held before", "stop": "told to stop before"}
            last = task.last_boundary
            yield _labelled("boundary", f"{clock(last.at)}, {words[last.word]} {last.name}")
    if task.worktree:
        yield _labelled("checkpoint", _commits(task))
        if task.uncommitted is not None:
            yield from _many("uncommitted", task.uncommitted or ["nothing"], columns=True)
    if task.files:
        yield _labelled("in", task.files.place)
        yield from _many("last minute", task.files.before or ["no file changed"], columns=True)
        if task.files.after:
            yield from _many("SINCE THEN", task.files.after, columns=True)
    yield from _many("ended", [process_text(one) for one in task.processes])
    yield from _many("not known", task.not_known)


def stopped_text(task: TaskReport) -> str:
    how = {
        "frozen": "frozen, then killed",
        "killed": "killed",
        "term": "ended after SIGTERM",
        "left": "left by itself under the stop",
        "ended": "ended by itself",
        "timeout": "ended by its time-out",
        "running": "still running",
        "not started": "not started",
    }.get(task.stopped_by, "not known")
    at = f"{clock(task.stopped_at)}, " if task.stopped_at else ""
    code = f", exit status {task.code}" if task.code is not None else ""
    ran = f" after {seconds_text(task.stopped_at - task.started_at)}" if task.stopped_at and task.started_at else ""
    return f"{at}{how}{code}{ran}"


def call_text(call: Call, stopped: Time | None) -> str:
    """`step3, began 10:14:06.900, 0.2s before the stop`."""
    before = f", {max(0.0, stopped - call.began):.3f}s before the stop" if stopped and call.began else ""
    return f"{call.name}, began {clock(call.began)}{before}"


def finished_text(task: TaskReport) -> str:
    done = task.finished
    if not done:
        return "no call"
    names = ", ".join(call.name for call in done[-5:])
    tokens = f"; {task.tokens} tokens" if task.tokens else ""
    count = f"{len(done)}+ calls" if task.calls_cut else number_of(len(done), "call")
    return f"{count}, last {names}{tokens}"


def _commits(task: TaskReport) -> str:
    saved, last = task.checkpoint, task.last_commit
    said = f"{saved.commit[:12]} {saved.subject} ({moment(saved.at)})" if saved else "none"
    other = (
        f"; last commit {last.commit[:12]} {last.subject}"
        if last and (not saved or last.commit != saved.commit)
        else ""
    )
    return f"{said}{other}, on {task.branch}"


def process_text(one: Process) -> str:
    """`4711 S 12s ./deploy.sh`."""
    age = "age ?" if one.age is None else seconds_text(one.age)
    return f"{one.pid} {one.state or '?'} {age} {shorten(command_line(one.argv, one.name or 'unreadable'), WIDTH)}"


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{LABEL}} {text}"


def _many(label: str, items: Sequence[str], columns: bool = False) -> Iterator[str]:
    """A line an item, or a few names in one; the label once."""
    if columns:
        more = f" and {len(items) - NAMES} more" if len(items) > NAMES else ""
        yield _labelled(label, ", ".join(shorten(item, WIDTH) for item in items[:NAMES]) + more)
        return
    for number, item in enumerate(items):
        yield _labelled("" if number else label, item)
