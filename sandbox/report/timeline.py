"""The timeline of a report: a line of life a task with its calls, the orders as marks across. HTML, CSS and SVG.

Positions are shares of the width, so that the text keeps its size on every screen; each lane is an SVG of LANE units
in width that is stretched to its column. Sources: SVG 2 (preserveAspectRatio, the title element), CSS Grid Layout 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.report.escape import esc
from sandbox.report.model import Call, Report, TaskReport, Time
from sandbox.report.summary import clock
from sandbox.report.text import call_text, stopped_text

LANE = 1000
THINNEST = 1.6
TAIL = 0.09
"""Share of the width that shows what came after the end: nothing, one hopes."""
NEAR = 0.012
"""Marks that are closer than this share of the width get one label."""
TEXT_WIDTH = 0.013
"""Share of the width that a letter of a label takes on a narrow screen: labels must not run into each other."""
LAST_TICK = 0.96
ZOOM_BEFORE = 30.0
ZOOM_LEAST = 4.0
STEPS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)


@dataclass(frozen=True)
class Scale:
    """From `begin` to `end`, in seconds since 1970."""

    begin: float
    end: float

    def share(self, at: float) -> float:
        """0 to 1 across the width; what lies outside is put on the edge."""
        return min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))

    def x(self, at: float) -> float:
        return round(self.share(at) * LANE, 2)


@dataclass
class Mark:
    """An event across all lanes. `kind`: pause, go, stop or end."""

    at: float
    text: str
    kind: str


def timeline(report: Report) -> str:
    """The whole run, and where that is long the time around its stop once more. "" where no time is known."""
    whole = _scale(report)
    if whole is None:
        return ""
    panels = [_panel(report, whole, "The whole run")]
    if (zoomed := _zoom(report, whole)) is not None:
        panels.append(_panel(report, zoomed, "Around the stop"))
    return "".join(panels) + _legend("".join(panels))


def _scale(report: Report) -> Scale | None:
    begins = [report.created_at, *(task.started_at for task in report.tasks)]
    ends = [report.empty_at, report.stopped_at, report.ended_at, *(order.at for order in report.orders)]
    ends += [moment for task in report.tasks for moment in (task.stopped_at, _last(task))]
    if report.alive == "alive" or report.stopped_at is None:
        ends.append(report.made_at)
    first = min((at for at in begins if at), default=None)
    if first is None:
        return None
    # A hostile clock must not squeeze the run into a line: marks beyond the report's own time are not shown.
    last = max([at for at in ends if at and at <= report.made_at], default=report.made_at)
    tail = TAIL if report.stopped_at else 0.0
    return Scale(first, max(last, first + 0.05) + max(last - first, 0.05) * tail)


def _last(task: TaskReport) -> Time | None:
    return task.last_boundary.at if task.last_boundary else None


def _zoom(report: Report, whole: Scale) -> Scale | None:
    orders = [stop.ordered_at for stop in report.stops if stop.ordered_at and stop.task_id is None]
    if not orders or report.stopped_at is None:
        return None
    begin = max(whole.begin, min(orders) - ZOOM_BEFORE)
    end = report.empty_at or report.stopped_at
    length = max(end - begin, 0.05)
    worth = (whole.end - whole.begin) / (length * (1 + TAIL)) >= ZOOM_LEAST
    return Scale(begin, end + length * TAIL) if worth else None


def _panel(report: Report, scale: Scale, name: str) -> str:
    marks, rows = _labels(_marks(report), scale)
    lanes = "".join(_lane(task, scale, report) for task in report.tasks)
    after = ""
    if report.stopped_at is not None:
        after = f'<div class="after" style="--at:{scale.share(report.stopped_at):.5f}"></div>'
    return (
        f'<figure class="timeline" style="--rows:{rows}"><figcaption>{name}</figcaption>'
        f'<div class="lanes">{after}{marks}{lanes}</div>{_axis(scale)}</figure>'
    )


def _marks(report: Report) -> list[Mark]:
    kinds = {"PAUSE": "pause", "RUN": "go", "STOP": "stop", "drop": "stop"}
    found = [
        Mark(order.at, order.order + (f" {order.task_id}" if order.task_id else ""), kinds.get(order.order, "go"))
        for order in report.orders
        if order.at and order.order != "keep"
    ]
    for stop in report.stops:
        of = f" {stop.task_id}" if stop.task_id else ""
        found += [Mark(r.at, r.rung + of, "stop") for r in stop.rungs if r.at and r.rung not in ("order", "kill")]
        found += [Mark(stop.frozen_at, f"frozen{of}", "stop")] if stop.frozen_at else []
        found += [Mark(stop.empty_at, f"empty{of}", "end")] if stop.empty_at else []
    if not report.stops and report.ended_at:
        found.append(Mark(report.ended_at, "ended", "end"))
    return sorted(found, key=lambda mark: mark.at)


def _labels(marks: list[Mark], scale: Scale) -> tuple[str, int]:
    """The marks as elements, those near each other under one label; and how many rows the labels take."""
    groups: list[list[Mark]] = []
    for mark in marks:
        if not scale.begin <= mark.at <= scale.end:
            continue
        if groups and scale.share(mark.at) - scale.share(groups[-1][0].at) < NEAR:
            groups[-1].append(mark)
        else:
            groups.append([mark])
    taken: list[float] = []
    out = []
    for group in groups:
        names = list(dict.fromkeys(mark.text for mark in group))
        text = " · ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        text = f"{text} {clock(Time(group[0].at))}"
        at, width = scale.share(group[0].at), len(text) * TEXT_WIDTH
        side, left = ("left", at - width) if at > 0.5 else ("right", at)
        row = next((number for number, end in enumerate(taken) if end <= left), len(taken))
        taken[row : row + 1] = [max(left + width, at) + 0.01]
        title = "\n".join(f"{mark.text} {Time(mark.at)}" for mark in group)
        out.append(
            f'<div class="mark {group[0].kind} {side}" style="--at:{at:.5f};--row:{row}" title="{esc(title)}">'
            f"<span>{esc(text)}</span></div>"
        )
    return "".join(out), max(1, len(taken))


def _lane(task: TaskReport, scale: Scale, report: Report) -> str:
    body = "".join([*_life(task, scale, report), *_holds(task, scale), *_calls(task, scale, len(report.tasks))])
    name = f'<div class="name" title="{esc(task.task_id)}"><bdi>{esc(task.task_id)}</bdi></div>'
    about = esc(f"task {task.task_id}: {stopped_text(task)}; {len(task.calls)} calls, {len(task.in_flight)} in flight")
    return (
        f'<div class="lane">{name}<svg viewBox="0 0 {LANE} 24" preserveAspectRatio="none" role="img" '
        f'aria-label="{about}">{body}</svg></div>'
    )


def _life(task: TaskReport, scale: Scale, report: Report) -> Iterator[str]:
    if task.started_at is None:
        return
    if task.stopped_by == "running":
        yield _rect(scale, task.started_at, report.made_at, 11, 2, "life", "alive when this was made")
        return
    known = task.stopped_at or _last(task) or task.started_at
    yield _rect(scale, task.started_at, known, 11, 2, "life", stopped_text(task))
    if task.stopped_at is None:
        yield _rect(scale, known, scale.end, 11, 2, "dim", "its end is not known")
    elif scale.begin <= task.stopped_at <= scale.end:
        kind = "cap cut" if task.stopped_by in ("frozen", "killed", "timeout") else "cap"
        yield _rect(scale, task.stopped_at, task.stopped_at, 2, 20, kind, stopped_text(task))


def _holds(task: TaskReport, scale: Scale) -> Iterator[str]:
    for hold in task.holds:
        end = hold.until or task.stopped_at or scale.end
        yield _rect(scale, hold.since, end, 6, 12, "hold", f"held before {hold.name} by a pause")


def _calls(task: TaskReport, scale: Scale, lanes: int) -> Iterator[str]:
    """Finished calls that stand closer than can be seen are drawn as one block."""
    flying = {id(call) for call in task.in_flight}
    gap = (scale.end - scale.begin) * (1 + lanes / 16) / LANE
    block: list[Call] = []
    for call in sorted(task.calls, key=_began):
        if id(call) in flying:
            end = task.stopped_at or call.ended or scale.end
            word = "in flight" if task.ends_marked else "no end marked"
            kind = "flight" if task.ends_marked else "vague"
            yield _rect(scale, _began(call), end, 3, 18, kind, f"{word}: {call_text(call, task.stopped_at)}")
        elif call.ended is not None:
            if block and _began(call) - _ended(block[-1]) > gap:
                yield _block(scale, block)
                block = []
            if block and _ended(call) - _began(call) > 4 * gap:
                yield _block(scale, block)
                block = []
            block.append(call)
            if _ended(call) - _began(call) > 4 * gap:
                yield _block(scale, block)
                block = []
    if block:
        yield _block(scale, block)


def _block(scale: Scale, calls: list[Call]) -> str:
    first, last = calls[0], calls[-1]
    if len(calls) == 1:
        title = f"{first.name}, {clock(first.began)} to {clock(first.ended)}"
    else:
        title = f"{len(calls)} calls, {first.name} to {last.name}, {clock(first.began)} to {clock(last.ended)}"
    return _rect(scale, _began(first), max(map(_ended, calls)), 5, 14, "call" if len(calls) == 1 else "many", title)


def _began(call: Call) -> float:
    return call.began or call.ended or 0.0


def _ended(call: Call) -> float:
    return call.ended or call.began or 0.0


def _rect(scale: Scale, begin: float, end: float, y: int, height: int, kind: str, title: str) -> str:
    """ "" for what lies outside of the scale."""
    if end < scale.begin or begin > scale.end:
        return ""
    left = scale.x(begin)
    width = max(scale.x(end) - left, THINNEST)
    left = min(left, LANE - THINNEST)
    return (
        f'<rect class="{kind}" x="{left:g}" y="{y}" width="{width:.2f}" height="{height}"><title>{esc(title)}</title>'
        "</rect>"
    )


def _axis(scale: Scale) -> str:
    length = scale.end - scale.begin
    step = next((one for one in STEPS if length / one <= 7), length / 5)
    ticks = []
    at = (scale.begin // step + 1) * step
    while scale.share(at) < LAST_TICK:
        ticks.append(f'<span style="--at:{scale.share(at):.5f}">{_tick(at, step)}</span>')
        at += step
    return f'<div class="axis">{"".join(ticks)}</div>'


def _tick(at: float, step: float) -> str:
    if step >= 21600:
        return time.strftime("%m-%d %H:%M", time.gmtime(at))
    if step >= 60:
        return time.strftime("%H:%M", time.gmtime(at))
    return str(Time(at))[11:23] if step < 0.1 else str(Time(at))[11:21] if step < 1 else str(Time(at + 0.001))[11:19]


def _legend(drawn: str) -> str:
    """Of what is drawn, and of nothing else."""
    kinds = (
        ("call", "call, finished"),
        ("many", "many short calls"),
        ("flight", "in flight at the stop"),
        ("vague", "no end marked"),
        ("hold", "held by a pause"),
        ("cap cut", "stopped"),
        ("cap", "ended by itself"),
    )
    items = ""
    for kind, text in kinds:
        if f'<rect class="{kind}"' in drawn:
            x, width = (9, 3) if "cap" in kind else (1, 20)
            rect = f'<rect class="{kind}" x="{x}" y="1" width="{width}" height="12"/>'
            items += f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{rect}</svg>{text}</li>'
    return f'<ul class="legend">{items}<li>times are UTC; calls are told by the workers\' own marks</li></ul>'
