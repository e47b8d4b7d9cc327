"""The one table of the drill: what passes, what is to be looked into, and how fast the fleet works.

A TOML file changes what it names: `[thresholds]` with `NAME = { pass = N, investigate = N }`, and `[pace]`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandbox.errors import USAGE, AgentboxError

FILE_MAX = 1 << 20


@dataclass(frozen=True)
class Threshold:
    """A row passes at `passes` or below, is to be investigated up to `investigate`, and fails above.

    `unit`: `s`, or "" for a count. `title`: what the row says.
    """

    title: str
    unit: str
    passes: float
    investigate: float


@dataclass(frozen=True)
class Pace:
    """`calls`: lengths of the workers' calls; all in seconds. `grace`, `term`: of the abort and of dropped tasks.

    `look_again`: how long after the abort is looked a second time. `patience`: for each step of the fleet.
    """

    calls: tuple[float, ...] = (0.3, 1.0, 2.0, 4.0)
    grace: float = 8.0
    term: float = 4.0
    look_again: float = 3.0
    patience: float = 60.0


THRESHOLDS = {
    "time_to_quiet": Threshold("time to quiet after pause", "s", 10, 30),
    "dirty_worktrees": Threshold("dirty worktrees after pause", "", 0, 0),
    "duplicate_workers": Threshold("duplicate workers after redirect, kept ones restarted", "", 0, 0),
    "pushes_to_main": Threshold("direct pushes to main", "", 0, 0),
    "orphans": Threshold("orphans alive after abort", "", 0, 0),
    "tokens_after_abort": Threshold("tokens spent after abort", "", 0, 0),
    # Workers leave in the grace of 8 s, daemons at SIGTERM after it; what takes more than 4 s from there was killed.
    "time_to_empty": Threshold("time from abort to last process dead", "s", 10, 12),
    "work_after_stop": Threshold("work started after the stop", "", 0, 0),
    "record": Threshold("record whole (problems found by verify)", "", 0, 0),
}


@dataclass(frozen=True)
class Table:
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: dict(THRESHOLDS))
    pace: Pace = field(default_factory=Pace)


def load(path: str | None) -> Table:
    """The table, with what the file at `path` changes of it. Raises AgentboxError (2)."""
    if path is None:
        return Table()
    try:
        with open(path, "rb") as file:
            found = tomllib.loads(file.read(FILE_MAX).decode())
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and UnicodeDecodeError are among them
        raise _bad(path, f"is no TOML: {error}") from None
    if unknown := sorted(set(found) - {"thresholds", "pace"}):
        raise _bad(path, f"has an unknown table {unknown[0]!r}")
    thresholds = dict(THRESHOLDS)
    for name, value in _table(path, found, "thresholds").items():
        if name not in thresholds:
            raise _bad(path, f"has an unknown threshold {name!r}", f"known: {', '.join(thresholds)}")
        thresholds[name] = _threshold(path, name, value, thresholds[name])
    return Table(thresholds, _pace(path, _table(path, found, "pace")))


def _table(path: str, found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name, {})
    if not isinstance(value, dict):
        raise _bad(path, f"{name} is no table")
    return value


def _threshold(path: str, name: str, value: Any, before: Threshold) -> Threshold:
    if not isinstance(value, dict) or set(value) - {"pass", "investigate"}:
        raise _bad(path, f"{name} is not like {{ pass = 1, investigate = 2 }}")
    passes = _number(path, name, value.get("pass", before.passes))
    investigate = _number(path, name, value.get("investigate", max(before.investigate, passes)))
    if investigate < passes:
        raise _bad(path, f"{name}: investigate is below pass")
    return replace(before, passes=passes, investigate=investigate)


def _pace(path: str, given: dict[str, Any]) -> Pace:
    known = set(vars(Pace()))
    if unknown := sorted(set(given) - known):
        raise _bad(path, f"has an unknown pace {unknown[0]!r}", f"known: {', '.join(sorted(known))}")
    values: dict[str, Any] = {name: _number(path, name, value) for name, value in given.items() if name != "calls"}
    calls = given.get("calls", list(Pace().calls))
    if not isinstance(calls, list) or not calls:
        raise _bad(path, "calls is no list of seconds")
    return Pace(calls=tuple(_number(path, "calls", one) for one in calls), **values)


def _number(path: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 86400:
        raise _bad(path, f"{name}: {value!r} is no number from 0 to 86400")
    return value


def _bad(path: str, why: str, fix: str = "see docs/drill.md") -> AgentboxError:
    return AgentboxError(f"{path} {why}", fix=fix, code=USAGE)
