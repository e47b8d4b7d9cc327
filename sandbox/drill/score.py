"""The score: a row each with what was measured and what that is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sandbox.drill.table import Table

PASS, INVESTIGATE, FAIL = "pass", "investigate", "fail"


@dataclass(frozen=True)
class Measured:
    """`value`: in the row's unit; None: could not tell. `detail`: what it is made of, for people."""

    value: float | None
    detail: str = ""


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    unit: str
    measured: float | None
    passes: float
    investigate: float
    verdict: str
    detail: str

    @property
    def shown(self) -> str:
        """The measured figure as people read it."""
        return "unknown" if self.measured is None else f"{self.measured:.2f} s" if self.unit else f"{self.measured:g}"


@dataclass
class Score:
    """`seconds`: the whole drill's. `acts`: what was done and when: seconds since its beginning, and words.

    `kept`: the folder that was left, or None. `problems`: what could not be undone.
    """

    run_id: str
    backend: str
    workers: int
    sabotage: str | None
    rows: list[Row] = field(default_factory=list)
    acts: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0
    kept: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return bool(self.rows) and all(row.verdict == PASS for row in self.rows) and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        acts = [{"at": at, "what": what} for at, what in self.acts]
        return {**asdict(self), "acts": acts, "passed": self.passed}


def rows(measured: Mapping[str, Measured], table: Table) -> list[Row]:
    """A row for each threshold; what was not measured is unknown, and unknown fails."""
    found = []
    for name, threshold in table.thresholds.items():
        one = measured.get(name, Measured(None, "not measured"))
        verdict = _verdict(one.value, threshold.passes, threshold.investigate)
        limits = (threshold.passes, threshold.investigate)
        value = None if one.value is None else round(one.value, 3)
        found.append(Row(name, threshold.title, threshold.unit, value, *limits, verdict, one.detail))
    return found


def _verdict(value: float | None, passes: float, investigate: float) -> str:
    if value is None:
        return FAIL
    return PASS if value <= passes else INVESTIGATE if value <= investigate else FAIL
