"""A frame as lines of a terminal: plain text that fits its width, hostile text neutralised, styled through rich."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from sandbox.cli.table import bytes_text, seconds_text
from sandbox.errors import number_of, printable
from sandbox.top.sample import Frame, Key, Row

NARROWEST = 40
FIXED = (("PROC", 4), ("CPU", 4), ("MEM", 6), ("AGE", 6))
KEYS = "p pause  r resume  AA abort  KK kill  EE emergency stop  q quit"
TWICE = {"A": "aborted", "K": "killed", "E": "ended"}
"""Keys that end something act when they are pressed a second time: K is near to k, which means up."""
STYLES = {
    "running": "green",
    "in call": "green",
    "starting": "cyan",
    "paused": "yellow",
    "pausing": "yellow",
    "stopping": "red",
    "kill_pending": "bold red",
    "leftovers": "yellow",
    "unknown": "magenta",
    "lost": "magenta",
}


@dataclass
class Screen:
    """`selected`: a run or task, or None. `messages`: what was done, the newest last.

    `armed`: the key of TWICE that was pressed once, or "".
    """

    selected: Key | None = None
    messages: list[str] = field(default_factory=list)
    armed: str = ""


def lines(frame: Frame, screen: Screen | None, width: int, height: int | None) -> list[Text]:
    """The whole screen. Without `screen` there is no selection, no keys; without `height` all rows are shown."""
    width = max(width, NARROWEST)
    head = [_fit(_title(frame), width, "bold"), _fit(_cells(_header(), width), width, "reverse")]
    foot = _foot(frame, screen, width)
    rows = frame.rows
    if height is not None:
        at = place(frame, screen.selected) if screen else None
        rows = _window(rows, at or 0, max(1, height - len(head) - len(foot)))
    shown = [_row(row, width, screen is not None and row.key == screen.selected) for row in rows]
    if not frame.rows:
        shown = [_fit(_nothing(frame), width, "dim")]
    space = 0 if height is None else height - len(head) - len(foot) - len(shown)
    return [*head, *shown, *([Text("")] * space), *foot]


def place(frame: Frame, selected: Key | None) -> int | None:
    """At which row a run or task stands; None where it is in none."""
    return next((number for number, row in enumerate(frame.rows) if row.key == selected), None)


def _nothing(frame: Frame) -> str:
    if not frame.looked:
        return "looking …"
    starts = "`agentbox run -- COMMAND` starts one"
    stopped = "nothing starts until `agentbox estop --lift`"
    return f"no runs; {starts if frame.emergency == 'off' else stopped}"


def _title(frame: Frame) -> str:
    runs = sum(row.task_id is None and row.live for row in frame.rows)
    tasks = sum(row.task_id is not None and row.live for row in frame.rows)
    processes = sum(row.processes or 0 for row in frame.rows if row.task_id is None)
    clock = time.strftime("%H:%M:%S", time.gmtime(frame.at))
    stop = f"emergency stop {frame.emergency}"
    counts = number_of(runs, "run"), number_of(tasks, "task"), number_of(processes, "process")
    return f"agentbox {clock} UTC  {', '.join(counts)}  {stop}"


def _header() -> tuple[str, ...]:
    return ("RUN / TASK", "STATE", "BOUNDARY", *(name for name, _ in FIXED), "BRANCH")


def _foot(frame: Frame, screen: Screen | None, width: int) -> list[Text]:
    found = [_fit(f"not asked: {line}", width, "magenta") for line in frame.problems[:2]]
    if screen is None:
        return found
    if screen.armed:
        return [*found, _fit(f"press {screen.armed} once more: {_meant(screen)}", width, "bold white on red")]
    found += [_fit(line, width, "") for line in screen.messages[-2:]]
    return [*found, _fit(KEYS, width, "dim")]


def _meant(screen: Screen) -> str:
    if screen.armed == "E" or screen.selected is None:
        return "EVERY run is ended, and none starts"
    run_id, task_id = screen.selected
    what = f"task {task_id} of {run_id}" if task_id else f"run {run_id}"
    return f"{what} is {TWICE[screen.armed]}"


def _window(rows: list[Row], selected: int, count: int) -> list[Row]:
    """The part of the rows that has the selected one in it."""
    begin = min(max(0, selected - count // 2), max(0, len(rows) - count))
    return rows[begin : begin + count]


def _row(row: Row, width: int, selected: bool) -> Text:
    name = row.run_id if row.task_id is None else f"  {row.task_id}"
    boundary = row.boundary if row.since is None else f"{row.boundary} {seconds_text(row.since)}"
    memory = "-" if row.processes is None or not row.live else bytes_text(row.memory)
    cells = (
        name,
        row.state,
        boundary,
        "?" if row.processes is None else str(row.processes),
        "-" if row.cpu is None else f"{row.cpu * 100:.0f}%",
        f"~{memory}" if row.summed and row.memory is not None else memory,
        seconds_text(row.age),
        row.branch,
    )
    style = "dim" if not row.live else STYLES.get(row.state, "")
    text = _fit(_cells(cells, width), width, style)
    if row.task_id is None:
        text.stylize("bold")
    if selected:
        text.stylize("reverse")
    return text


def _cells(cells: tuple[str, ...], width: int) -> str:
    """In columns; what is left of the width beyond 80 goes to the name, the boundary and the branch."""
    spare = max(0, width - 80)
    widths = [20 + spare // 3, 9, 15 + spare // 4, *(size for _, size in FIXED)]
    widths.append(max(0, width - sum(widths) - len(widths)))
    parts = []
    for number, (cell, size) in enumerate(zip(cells, widths, strict=True)):
        text = printable(cell)
        if number == len(cells) - 1:
            parts.append(_tail(text, size))
        else:
            parts.append(_right(text, size) if 3 <= number <= 6 else _cut(text, size))
    return " ".join(parts)


def _cut(text: str, size: int) -> str:
    """Exactly `size` cells of the terminal; a wide letter takes two."""
    return (
        set_cell_size(text, size)
        if cell_len(text) <= size
        else set_cell_size(text, max(0, size - 1)) + "…" * (size > 0)
    )


def _right(text: str, size: int) -> str:
    return " " * (size - cell_len(text)) + text if cell_len(text) < size else _cut(text, size)


def _tail(text: str, size: int) -> str:
    """The end of a branch tells more than its beginning: its last names, whole ones where one fits."""
    whole = text
    while text and cell_len(text) > size:
        text = "…" + text.removeprefix("…")[1:] if len(text) > 1 and size > 0 else ""
    name = text.find("/")
    return f"…{text[name:]}" if text != whole and 0 < name < len(text) - 1 else text


def _fit(text: str, width: int, style: str) -> Text:
    return Text(_cut(printable(text), width), style=style, no_wrap=True)
