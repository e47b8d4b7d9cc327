"""A whole look: survey, classification, and a second glance at each run that something was found about."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.manifest.home import Home
from sandbox.reconcile.classify import classify, confirmed, run_states
from sandbox.reconcile.findings import Finding, in_order
from sandbox.reconcile.survey import SECONDS, Survey, looked_again, survey


@dataclass
class Look:
    """What a look gave. `states`: of each run, in a word."""

    survey: Survey
    findings: list[Finding]
    states: dict[str, str]


def look(home: Home, only: str | None = None, seconds: float = SECONDS) -> Look:
    """Everything, or one run alone. Raises nothing."""
    seen = survey(home, only, seconds)
    return Look(seen, in_order(recheck(home, seen, classify(seen))), run_states(seen))


def recheck(home: Home, seen: Survey, found: list[Finding]) -> list[Finding]:
    """Those that fresh looks at their runs find, too: a run may have gone on while the observers looked."""
    about = [one for one in found if one.run_id is not None]
    run_ids = sorted({one.run_id for one in about if one.run_id is not None})
    others = [one for one in found if one.run_id is None]
    return others + (confirmed(about, looked_again(home, seen, run_ids)) if run_ids else [])
