"""The table of a redirect: every in-flight task exactly once, as keep, modify or drop.

JSON or TOML, an object with `tasks`: an array of objects {`task`, `action`, `delta` (modify), `why` (drop)}.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sandbox.errors import USAGE, AgentboxError

ACTIONS = ("keep", "modify", "drop")
FIELDS = {"task", "action", "delta", "why", "touched"}


@dataclass(frozen=True)
class Row:
    """`delta`: what changes, any JSON value, for `modify`. `why`: text, for `drop`."""

    task: str
    action: str
    delta: Any = None
    why: str = ""


def parse(text: str, in_flight: Iterable[str]) -> list[Row]:
    """The rows of a table that fits the tasks in flight. Raises AgentboxError that names what does not fit."""
    table = _load(text)
    tasks = table.get("tasks") if isinstance(table, dict) else None
    if not isinstance(tasks, list) or not all(isinstance(row, dict) for row in tasks):
        raise _refuse("it has no `tasks` array of objects")
    rows = [_row(number, row) for number, row in enumerate(tasks, 1)]
    _check_complete(rows, set(in_flight))
    return rows


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of a number with too many digits, too
        raise _refuse(f"it is neither JSON ({wrong}) nor TOML ({error})") from None


def _row(number: int, row: dict[str, Any]) -> Row:
    task, action = row.get("task"), row.get("action")
    if not isinstance(task, str) or not task:
        raise _refuse(f"row {number} names no task")
    if action not in ACTIONS:
        raise _refuse(f"task {task}: action {action!r} is none of {', '.join(ACTIONS)}")
    if unknown := set(row) - FIELDS:
        raise _refuse(f"task {task}: unknown field {', '.join(sorted(unknown))}")
    if action == "modify" and row.get("delta") in (None, "", {}, []):
        raise _refuse(f"task {task}: modify needs a delta")
    why = row.get("why", "")
    if action == "drop" and (not isinstance(why, str) or not why.strip()):
        raise _refuse(f"task {task}: drop needs a why")
    return Row(task, action, row.get("delta"), str(why))


def _check_complete(rows: list[Row], in_flight: set[str]) -> None:
    counts = Counter(row.task for row in rows)
    wrong = []
    if twice := sorted(task for task, count in counts.items() if count > 1):
        wrong.append(f"twice: {', '.join(twice)}")
    if missing := sorted(in_flight - set(counts)):
        wrong.append(f"missing: {', '.join(missing)}")
    if stray := sorted(set(counts) - in_flight):
        wrong.append(f"not in flight: {', '.join(stray)}")
    if wrong:
        raise _refuse("; ".join(wrong))


def _refuse(why: str) -> AgentboxError:
    return AgentboxError(f"the table is refused: {why}", fix="`agentbox redirect RUN --draft` prints one", code=USAGE)
