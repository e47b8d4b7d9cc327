"""Which steps of a start and a stop are met in one order alone, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNDO = r"start: (kill|engine \w+|destroy( 2)?|parents 2|look 3|task.failed_to_start)( \d)?"
ALONE = ("run", "task")
"""Scenes in which nothing but what is being started is stopped."""

OF_THE_KERNEL = ("cgroup", "systemd")
"""Backends whose boxes the first look of a stop finds."""


@dataclass(frozen=True)
class Rule:
    """`first` never comes before `second`, both patterns of whole steps, in these scenes and on these backends."""

    first: str
    second: str
    why: str
    scenes: tuple[str, ...] = ("run", "spawn", "task")
    backends: tuple[str, ...] = ("cgroup", "systemd", "docker")

    def holds(self, scene: str, backend: str, first: str, second: str) -> bool:
        here = scene in self.scenes and backend in self.backends
        return here and bool(re.fullmatch(self.first, first) and re.fullmatch(self.second, second))


LATER = re.compile(r"stop: (after )?round [3-9] .*")
"""From the third on the rounds of a stop are like its second: what they meet is not looked for."""

NEVER = (
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
        r"stop: (round \d (ask for the freeze|kill)|(after )?round [2-9] .*)( \d)?",
        r"start: (parents|fork)",
        "a scope is made at the fork, around its first process",
        ("task",),
        ("systemd",),
    ),
    Rule(
        r"stop: settle .*",
        r"start: (task.started|release)",
        "a stop leaves the boxes to a launcher that is at it, and of a start after it there is only a look",
    ),
    Rule(
        r"stop: round \d docker .*(freeze|kill|engine \w+)( \d)?",
        r"start: (parents|fork)",
        "a container is made at the fork",
        ALONE,
    ),
    Rule(
        r"stop: round \d (\w+ freeze|docker engine (kill|pause))( \d)?",
        r"start: (look 2|task.started|release)",
        "a container runs from its release on",
        ALONE,
        ("docker",),
    ),
    Rule(
        UNDO,
        r"stop: round \d (\w+ freeze|docker engine (kill|pause))( \d)?",
        "what a start undoes does not live any more, or never did",
        ALONE,
        ("docker",),
    ),
    Rule(
        r"stop: round \d docker (freeze|engine (kill|pause))( \d)?",
        UNDO,
        "what the engine calls running was released, and its start has nothing to undo",
        ALONE,
        ("docker",),
    ),
    Rule(
        r"stop: (after )?round [2-9] .*",
        r"start: (look|task.intent|create)",
        "a further round is there for a box that came during the one before",
        ALONE,
    ),
    Rule(
        r"stop: (after )?round [2-9] .*",
        r"start: (look|task.intent|create|parents|fork)",
        "a further round is there for what came to live during the one before",
        ("spawn",),
        OF_THE_KERNEL,
    ),
    Rule(
        r"stop: (after )?round [2-9] .*",
        r"start: (task.started|release)",
        "whose box comes during a stop is refused at its second look",
        backends=OF_THE_KERNEL,
    ),
    Rule(
        r"start: (task.started|release)",
        r"stop: (after )?round [2-9] .*",
        "whose box comes during a stop is refused at its second look",
        backends=OF_THE_KERNEL,
    ),
)


def asked_for(scene: str, backend: str, first: str, second: str) -> bool:
    """Whether the first should be met before the second."""
    later = LATER.fullmatch(first) or LATER.fullmatch(second)
    return not later and why_not(scene, backend, first, second) is None


def why_not(scene: str, backend: str, first: str, second: str) -> str | None:
    """Why the first can't come before the second; None where it can."""
    return next((rule.why for rule in NEVER if rule.holds(scene, backend, first, second)), None)
