"""Tool calls out of a worker's marks (harness.gate): each `call` with the `tick` of its name that came after it."""

from __future__ import annotations

from sandbox.harness import beat
from sandbox.report.model import Boundary, Call, Hold, TaskReport, Time

MOST = 16 << 20
"""Bytes of marks that are read of a task: some 300,000 calls."""
ROUNDING = 0.02
"""Seconds: a mark's time is rounded, to hundredths at worst, and may be dated after the freeze that came after it."""


def add_calls(task: TaskReport, path: str) -> None:
    """Fill what the marks at `path` tell. `task.stopped_at` must be there already, if it is known."""
    found = beat.read(path, MOST)
    task.gate, task.calls_cut = bool(found.marks), found.cut > 0
    if found.marks:
        last = found.marks[-1]
        task.last_boundary = Boundary(Time(last.at), last.word, last.name)
        task.tokens = sum(mark.tokens for mark in found.marks)
    _pair(task, found.marks)
    limit = None if task.stopped_at is None else task.stopped_at + ROUNDING
    task.in_flight = [call for call in task.calls if _in_flight(call, limit)]
    task.ends_marked = any(mark.word == "tick" for mark in found.marks) or len(task.calls) < 2
    task.not_known += _doubts(task, found, limit)


def _pair(task: TaskReport, marks: list[beat.Mark]) -> None:
    """Calls of one name may overlap: an end is that of the one which began first."""
    open_calls: dict[str, list[Call]] = {}
    held: dict[str, Hold] = {}
    for mark in marks:
        at = Time(mark.at)
        if mark.word == "quiet":
            held[mark.name] = Hold(mark.name, at)
            task.holds.append(held[mark.name])
            continue
        if mark.word in ("call", "stop") and mark.name in held:
            held.pop(mark.name).until = at
        if mark.word == "call":
            call = Call(mark.name, at)
            open_calls.setdefault(mark.name, []).append(call)
            task.calls.append(call)
        elif mark.word == "stop":
            task.told_to_stop_at = task.told_to_stop_at or at
        elif waiting := open_calls.get(mark.name):
            call = waiting.pop(0)
            call.ended, call.tokens = at, mark.tokens
        else:
            task.calls.append(Call(mark.name, None, at, mark.tokens))


def _in_flight(call: Call, limit: float | None) -> bool:
    if limit is not None and (call.began or 0) > limit:
        return False
    return call.ended is None or (limit is not None and call.ended > limit)


def _doubts(task: TaskReport, found: beat.Reading, limit: float | None) -> list[str]:
    lines = []
    if not found.marks:
        lines.append("which calls it made: it passed no gate")
    if task.calls_cut:
        lines.append(f"its first calls: {found.cut} bytes of older marks were not read")
    if found.bad:
        lines.append(f"what {found.bad} lines of its marks say: they are no marks")
    if not task.ends_marked:
        lines.append("which of its calls had finished: it marks no ends")
    if limit is not None:
        late = sum(mark.at > limit for mark in found.marks)
        if late:
            lines.append(f"when {late} of its calls really were: its marks date them after its end")
        if found.written_at is not None and found.written_at > limit:
            lines.append(f"who wrote to its marks at {Time(found.written_at)}, after its end")
    return lines
