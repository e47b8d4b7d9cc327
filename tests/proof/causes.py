"""Which steps of a start and a stop can come in one order alone, and why: of these there is nothing to play."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNDO = r"start: (kill|engine \w+|destroy( 2)?|parents 2|look 3|task.failed_to_start)( \d)?"
ALL = ("run", "spawn", "task")
ALONE = ("run", "task")
"""Scenes in which nothing but what is being started is stopped."""


@dataclass(frozen=True)
class Rule:
    """`first` never comes before `second`, both patterns of whole steps, in these scenes."""

    first: str
    second: str
    why: str
    scenes: tuple[str, ...] = ALL


RULES = (
    Rule(UNDO, r"stop: (locate .*|order)", "a start undoes itself only because of the order"),
    Rule(
        r"stop: round \d .*(freeze|kill|engine \w+)( \d)?",
        r"start: (look|task.intent|create)",
        "a stop acts on boxes that it has found",
        ALONE,
    ),
    Rule(
        r"stop: round \d (\w+ )?freeze( \d)?",
        r"start: (parents|fork)",
        "a stop waits for the freeze of what lives, and before the fork nothing does",
        ALONE,
    ),
    Rule(
        r"stop: settle .*",
        r"start: (task.started|release)",
        "a stop leaves the boxes to a launcher that is at it, and of a start after it there is only a look",
    ),
)


def why_not(scene: str, first: str, second: str) -> str | None:
    """Why `first` can't come before `second`; None where it can."""
    for rule in RULES:
        if scene in rule.scenes and re.fullmatch(rule.first, first) and re.fullmatch(rule.second, second):
            return rule.why
    return None
