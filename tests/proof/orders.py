"""Which orders of two sides' steps are played, and which pairs of steps were met in both orders by them.

A step is known by its side, its name and the how-manyth of that name it is: `start: look 2`.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from tests.proof.stage import START, STOP

Order = tuple[str, ...]
ENDLESS = 1000
WITNESSES = 4
"""Plays from which the way to a pair that is not met yet is tried."""


@dataclass(frozen=True)
class Made:
    """A play: its steps as (side, name), and at each the sides that could have gone on."""

    steps: tuple[tuple[str, str], ...]
    could: tuple[tuple[str, ...], ...]

    @property
    def order(self) -> Order:
        return tuple(side for side, _ in self.steps)

    @cached_property
    def names(self) -> list[str]:
        """The steps, each with a name of its own."""
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        found = []
        for step in self.steps:
            counts[step] += 1
            number = f" {counts[step]}" if counts[step] > 1 else ""
            found.append(f"{step[0]}: {step[1]}{number}")
        return found


Play = Callable[[Order], Made]


def drawn(play: Play, most: int, seed: int) -> Iterator[Made]:
    """`most` whole orders, each turn thrown with a coin that is weighted anew for each: all of them are too many."""
    rng = random.Random(seed)
    for _ in range(most):
        weight = rng.uniform(0.2, 0.8)
        yield play(tuple(START if rng.random() < weight else STOP for _ in range(ENDLESS)))


def pairs(play: Play, most: int = 0, seed: int = 0) -> Iterator[Made]:
    """The start goes i steps, the stop j, then the start all of its rest, then the stop its: for every (i, j).

    So each step of either side comes before and after each of the other's. Then the same with the start going only
    one more step before the stop goes all of its rest: what a further round of a stop is there for. With `most` that
    many of the first kind, drawn by `seed`, and the one in which the start is through before the stop begins.
    """
    first = play((START,) * ENDLESS)
    yield first
    starts = first.order.count(START)
    if most:
        all_of_them = [(i, j) for i in range(starts) for j in range(1, len(first.order) - starts + 1)]
        for i, j in random.Random(seed).sample(all_of_them, min(most - 1, len(all_of_them))):
            yield play(_turns(i, j, ENDLESS))
        return
    for more in (ENDLESS, 1):
        for i in range(starts):
            j, made = 0, first
            while not j or made.order[i : i + j] == (STOP,) * j:
                j += 1
                made = play(_turns(i, j, more))
                yield made


def _turns(i: int, j: int, more: int) -> Order:
    return (START,) * i + (STOP,) * j + (START,) * more + (STOP,) * ENDLESS


def directed(play: Play, coverage: Coverage, wanted: Callable[[str, str], bool]) -> Iterator[Made]:
    """Orders of more turns, for what is not met yet and can be: a play that had the first step, with the side of the
    second held before it until then."""
    tried: set[Order] = set()
    while True:
        left = [pair for pair in coverage.missing() if wanted(*pair)]
        fresh = next((order for pair in left for order in coverage.towards(*pair) if order not in tried), None)
        if fresh is None:
            return
        tried.add(fresh)
        yield play(fresh)


@dataclass
class Coverage:
    """Which steps there were, and which of two came first: by what was really played."""

    steps: dict[str, dict[str, int]] = field(default_factory=lambda: {START: {}, STOP: {}})
    """Each side's, with the number of its own that came before, at the least."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    plays: dict[Order, Made] = field(default_factory=dict)

    def add(self, made: Made) -> None:
        self.plays[made.order] = made
        before: dict[str, list[str]] = {START: [], STOP: []}
        for side, step in zip(made.order, made.names, strict=True):
            number = len(before[side])
            self.steps[side][step] = min(number, self.steps[side].get(step, number))
            self.seen |= {(other, step) for other in before[STOP if side == START else START]}
            before[side].append(step)

    def missing(self) -> list[tuple[str, str]]:
        """(first, second): pairs of which one order was never met."""
        both = [(a, b) for a in self.steps[START] for b in self.steps[STOP]]
        return [pair for a, b in both for pair in ((a, b), (b, a)) if pair not in self.seen]

    def towards(self, first: str, second: str) -> Iterator[Order]:
        """At most WITNESSES orders that may have `first` before `second`."""
        side = START if first in self.steps[START] else STOP
        other = STOP if side == START else START
        found: dict[Order, None] = {}
        for made in sorted(self.plays.values(), key=lambda made: second not in made.names):
            if first not in made.names or len(found) == WITNESSES:
                continue
            left, order = self.steps[other][second], []
            for turn in made.order[: made.names.index(first) + 1]:
                left -= turn == other
                if turn == side or left >= 0:
                    order.append(turn)
            found[(*order, *(other,) * ENDLESS)] = None
        yield from found
