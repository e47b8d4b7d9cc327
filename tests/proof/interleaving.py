"""A start and a stop, step by step in every order that there is.

usage: python -m tests.proof.interleaving SCENE BACKEND MOST SEED, with AGENTBOX_HOME set. Plays every order, or, where
there are more than MOST (0: no bound), that many drawn by SEED. Prints {"scene", "orders", "seen": {how it came out:
count}, "faults": [...]}.

The two sides are the project's own `start` and `kill`, each in a thread, on real boxes. What they are given (backend,
home, record, child) stands still at each step of DESIGN's two lists until it is that side's turn: the looks at the
order, the intent, the box, the fork, the record, the release; the order, the looks for boxes, the freeze, the kill.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.boxes.base import Backend, Box
from sandbox.boxes.registry import backend as backend_named
from sandbox.control.stop import Stop, begin, kill
from sandbox.control.targets import Target
from sandbox.errors import AgentboxError, Refused
from sandbox.kernel.spawn import Child
from sandbox.launch.run import prepare
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.start import Started, start
from sandbox.manifest.home import Home
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import Writer
from tests.beds import space
from tests.cli.runs import parent_box

PATIENCE = 60.0
START, STOP = "start", "stop"
Order = tuple[str, ...]


class Stage:
    """Lets one side at a time go on to its next step, in the order that is asked for.

    A child that enters a frozen box stands still, and the start with it, until the stop goes on: `held` tells.
    """

    def __init__(self, held: Callable[[], bool]) -> None:
        self.turn = threading.Condition()
        self.held = held
        self.running: set[str] = set()
        self.waiting: set[str] = set()
        self.over: set[str] = set()
        self.mine = threading.local()

    def step(self) -> None:
        """Called by a side before each of its steps."""
        side = getattr(self.mine, "side", None)
        if side is None:
            return
        with self.turn:
            self.waiting.add(side)
            self.running.discard(side)
            self.turn.notify_all()
            if not self.turn.wait_for(lambda: side in self.running, PATIENCE):
                raise RuntimeError(f"{side} was never let go")
            self.waiting.discard(side)

    def act(self, side: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            self.mine.side = side
            try:
                self.step()
                work()
            finally:
                with self.turn:
                    self.over.add(side)
                    self.running.discard(side)
                    self.turn.notify_all()

        thread = threading.Thread(target=run, name=side, daemon=True)
        thread.start()
        return thread

    def choices(self) -> list[str]:
        """The sides that wait for their turn, once nobody runs who can."""
        deadline = time.monotonic() + PATIENCE
        with self.turn:
            while not self.turn.wait_for(lambda: self.waiting | self.over == {START, STOP}, 0.05):
                if STOP in self.waiting and self.held():
                    return [STOP]
                assert time.monotonic() < deadline, f"{self.running} do not come to their next step"
            return sorted(self.waiting)

    def let_go(self, side: str) -> None:
        with self.turn:
            self.waiting.discard(side)
            self.running.add(side)
            self.turn.notify_all()


class SteppedChild:
    """A child whose release is a step."""

    def __init__(self, child: Child, step: Callable[[], None]) -> None:
        self._child, self._step, self.pid = child, step, child.pid

    def release(self) -> None:
        self._step()
        self._child.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._child, name)


class SteppedBackend:
    """A backend whose acts are steps."""

    STEPS = ("create", "parents", "find", "freeze", "kill", "destroy")

    def __init__(self, inner: Backend, step: Callable[[], None]) -> None:
        self._inner, self._step, self.name = inner, step, inner.name

    def start(self, *args: Any, **options: Any) -> Any:
        self._step()
        return SteppedChild(self._inner.start(*args, **options), self._step)

    def __getattr__(self, name: str) -> Any:
        if name in self.STEPS:
            self._step()
        return getattr(self._inner, name)


class SteppedWriter(Writer):
    """A writer whose records are steps."""

    step: Callable[[], None]

    def append(self, *args: Any, **options: Any) -> dict[str, Any]:
        self.step()
        return super().append(*args, **options)


@dataclass(frozen=True)
class SteppedHome(Home):
    """A home at whose emergency file one looks in a step: the first thing that a look at the orders does."""

    stage: Stage

    @property
    def emergency_stop(self) -> str:
        self.stage.step()
        return super().emergency_stop


@dataclass
class Outcome:
    started: Started | None = None
    error: BaseException | None = None
    stop: Stop | None = None
    alive_when_answered: bool = False


def play(home: Home, name: str, scene: str, chosen: Order) -> tuple[Order, list[list[str]]]:
    """One order: `chosen`, then the stop first wherever both could go on. Gives the order, and what could have gone."""
    run_id = f"i-{os.getpid()}-{play_number()}"
    main = launched(home, name, run_id) if scene != "run" else None
    task = "t" if scene != "run" else "main"
    ran = Path(f"{home.path}.{run_id}")
    spec = LaunchSpec(
        run_id,
        task,
        [b"/bin/sh", b"-c", f"echo > {ran}; exec sleep 900".encode()],
        new_run=scene == "run",
        backend=name,
    )
    run, writer, inner = prepare(spec, home)
    stage, outcome = Stage(lambda: frozen(run_id)), Outcome()
    stepped = SteppedBackend(inner, stage.step)
    stepped_writer = SteppedWriter(writer.path, run_id, writer.by)
    stepped_writer.step = stage.step
    target_task = task if scene == "task" else None
    path = run.task_order(task) if target_task else run.control
    target = Target(run_id, target_task, path, [stepped])

    def starting() -> None:
        try:
            outcome.started = start(
                spec, SteppedHome(home.path, stage), run, stepped_writer, stepped, [], ("nothing", lambda: None)
            )
        except BaseException as error:
            outcome.error = error

    def stopping() -> None:
        outcome.stop = kill(target, begin(target, "every order", "a test"))
        outcome.alive_when_answered = ran.exists() and lives(inner, run_id, target_task)

    threads = [stage.act(START, starting), stage.act(STOP, stopping)]
    made: list[str] = []
    could: list[list[str]] = []
    while choices := stage.choices():
        wanted = chosen[len(made)] if len(made) < len(chosen) else STOP
        side = wanted if wanted in choices else choices[0]
        could.append(choices)
        made.append(side)
        stage.let_go(side)
    for thread in threads:
        thread.join(PATIENCE)
    try:
        judge(outcome, inner, run_id, target_task, ran, main)
    finally:
        clean_up(outcome, inner, run_id, ran, main)
    assert verify(run.manifest).whole
    return tuple(made), could


_number = iter(range(1 << 30))


def play_number() -> int:
    return next(_number)


def launched(home: Home, name: str, run_id: str) -> Started:
    """A run with a main task that lives."""
    spec = LaunchSpec(run_id, "main", [b"/bin/sleep", b"900"], backend=name)
    run, writer, inner = prepare(spec, home)
    return start(spec, home, run, writer, inner, [], ("nothing", lambda: None))


def frozen(run_id: str) -> bool:
    """Is the run's box to be frozen, or one in it?"""
    box = parent_box(run_id)
    with suppress(OSError):
        return box is not None and any(file.read_text() == "1\n" for file in box.glob("**/cgroup.freeze"))
    return False


def lives(inner: Backend, run_id: str, task: str | None) -> bool:
    box = inner.find(run_id, task) if task else None
    boxes: list[Box] = inner.parents(run_id) if task is None else [box] if box else []
    return any(inner.populated(box) != "empty" for box in boxes)


def judge(outcome: Outcome, inner: Backend, run_id: str, task: str | None, ran: Path, main: Started | None) -> None:
    assert outcome.stop is not None and outcome.stop.proof == "empty", outcome.stop
    assert not outcome.alive_when_answered, "it lived when the stop was answered"
    assert not lives(inner, run_id, task), "it lives after both"
    if outcome.started is not None:
        assert not space.is_alive(outcome.started.pid), "started, and alive"
    else:
        assert isinstance(outcome.error, Refused), repr(outcome.error)
    if main is not None:
        assert space.is_alive(main.pid) is (task is not None), "the main task"


def clean_up(outcome: Outcome, inner: Backend, run_id: str, ran: Path, main: Started | None) -> None:
    for started in (outcome.started, main):
        if started is not None:
            with suppress(ProcessLookupError):
                os.kill(started.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(started.pid, 0)
    for box in inner.parents(run_id):
        inner.destroy(box)
    if box_left := parent_box(run_id):
        assert space.end_tree(box_left)
    ran.unlink(missing_ok=True)


def every_order(one: Callable[[Order], tuple[Order, list[list[str]]]]) -> Iterator[Order]:
    """Each order once: what a play could have done elsewhere is what is played next."""
    waiting: list[Order] = [()]
    while waiting:
        prefix = waiting.pop()
        made, could = one(prefix)
        yield made
        for place in range(len(prefix), len(made)):
            waiting += [(*made[:place], other) for other in could[place] if other != made[place]]


def orders_at_random(one: Callable[[Order], tuple[Order, list[list[str]]]], most: int, seed: int) -> Iterator[Order]:
    """Each order is drawn by a mix of the two sides, weighted so that either may be far ahead."""
    rng = random.Random(seed)
    for _ in range(most):
        weight = rng.random()
        made, _ = one(tuple(START if rng.random() < weight else STOP for _ in range(40)))
        yield made


def played(scene: str, name: str, most: int, seed: int) -> dict[str, object]:
    home = Home.locate().ensure()
    backend_named(name, home.path).probe()
    seen: collections.Counter[str] = collections.Counter()
    faults: list[str] = []

    def one(chosen: Order) -> tuple[Order, list[list[str]]]:
        try:
            return play(home, name, scene, chosen)
        except (AssertionError, AgentboxError) as error:
            faults.append(f"{scene} on {name}, {' '.join(chosen)}: {error}")
            raise

    orders = orders_at_random(one, most, seed) if most else every_order(one)
    with suppress(AssertionError, AgentboxError):
        for made in orders:
            seen["the start ended first" if made[-1] == STOP else "the stop ended first"] += 1
    return {"scene": scene, "orders": sum(seen.values()), "seen": dict(seen), "faults": faults}


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    print(json.dumps(played(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
