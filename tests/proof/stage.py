"""A start and a stop that stand still at each of their steps until it is that side's turn.

Each step has a name; it is called before the step, and what follows it up to the next call is the step.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.boxes.base import Backend, Box
from sandbox.boxes.docker import DockerBackend
from sandbox.control.targets import Target
from sandbox.kernel.spawn import Child
from sandbox.manifest.home import Home
from sandbox.manifest.writer import Writer

PATIENCE = 60.0
START, STOP = "start", "stop"
HELD_BY_A_FREEZE = ("fork", "release")
"""Steps of a start that a frozen box holds: its child enters the box, and runs on in it."""

Step = Callable[[str], None]


class Stage:
    """Lets one side at a time go on to its next step, in the order that is asked for.

    `held`: does a freeze hold the start now? Then it comes to its next step only after the stop has gone on.
    """

    def __init__(self, held: Callable[[], bool]) -> None:
        self.turn = threading.Condition()
        self.held = held
        self.running: dict[str, str] = {}
        self.waiting: dict[str, str] = {}
        self.over: set[str] = set()
        self.mine = threading.local()

    def step(self, name: str) -> None:
        """Called by a side before each of its steps."""
        side = getattr(self.mine, "side", None)
        if side is None:
            return
        with self.turn:
            self.waiting[side] = name
            self.running.pop(side, None)
            self.turn.notify_all()
            if not self.turn.wait_for(lambda: side in self.running, PATIENCE):
                raise RuntimeError(f"{side} was never let go")

    def act(self, side: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            self.mine.side = side
            try:
                work()
            finally:
                with self.turn:
                    self.over.add(side)
                    self.running.pop(side, None)
                    self.turn.notify_all()

        self.running[side] = "begin"
        thread = threading.Thread(target=run, name=side, daemon=True)
        thread.start()
        return thread

    def choices(self) -> dict[str, str]:
        """The sides that wait for their turn, each with its next step, once nobody runs who can."""
        deadline = time.monotonic() + PATIENCE
        with self.turn:
            while not self.turn.wait_for(lambda: not self.running, 0.05):
                if STOP in self.waiting and self.running.get(START) in HELD_BY_A_FREEZE and self.held():
                    return {STOP: self.waiting[STOP]}
                assert time.monotonic() < deadline, f"{self.running} do not come to their next step"
            return dict(self.waiting)

    def let_go(self, side: str) -> None:
        with self.turn:
            self.running[side] = self.waiting.pop(side)
            self.turn.notify_all()


class SteppedChild:
    """A child whose release is a step."""

    def __init__(self, child: Child, step: Step) -> None:
        self._child, self._step, self.pid = child, step, child.pid

    def release(self) -> None:
        self._step("release")
        self._child.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._child, name)


class SteppedBackend:
    """A backend whose acts are steps, and, of an engine, each call that changes a container."""

    STEPS = ("create", "parents", "find", "kill", "destroy")

    def __init__(self, inner: Backend, step: Step) -> None:
        self._inner, self._step, self.name = inner, step, inner.name
        if isinstance(inner, DockerBackend):
            containers, act = inner._containers, inner._containers.act

            def stepped(verb: str, *args: Any, **options: Any) -> bool:
                self._step(f"engine {verb}")
                return act(verb, *args, **options)

            containers.act = stepped  # type: ignore[method-assign]

    def start(self, *args: Any, **options: Any) -> Any:
        self._step("fork")
        # The other side's connections are in this process, too: what stands for a container closes all files, and a
        # collection there would close their numbers once more.
        gc.freeze()
        try:
            return SteppedChild(self._inner.start(*args, **options), self._step)
        finally:
            gc.unfreeze()

    def freeze(self, box: Box, deadline: float) -> bool:
        self._step("freeze" if deadline else "ask for the freeze")
        return self._inner.freeze(box, deadline)

    def __getattr__(self, name: str) -> Any:
        if name in self.STEPS:
            self._step(name)
        return getattr(self._inner, name)


@dataclass
class SteppedTarget(Target):
    """A target of which each look begins a part of the stop, whose steps are named after it.

    Before the order it is `locate`; then `round 1`, the look `after` it, and so on; at last what there is to `settle`.
    """

    part: str = "locate"
    looks: int = 0

    def each(self) -> Iterator[tuple[Backend, Box]]:
        if self.part != "settle":
            self.part = f"{'after ' if self.looks % 2 else ''}round {self.looks // 2 + 1}"
            self.looks += 1
        yield from super().each()

    @classmethod
    def of(cls, target: Target, asked: Sequence[str], step: Step) -> SteppedTarget:
        """`target`, with those of its backends in steps whose names are `asked`."""
        one = cls(target.run_id, target.task_id, target.order_path, [])

        def stepped(inner: Backend) -> Backend:
            if inner.name not in asked:
                return inner
            named = f"{inner.name} " if len(asked) > 1 else ""
            return SteppedBackend(inner, lambda name: step(f"{one.part} {named}{name}"))

        one.backends = [stepped(inner) for inner in target.backends]
        one.more = lambda: [stepped(inner) for inner in target.more()] if target.more else []
        return one


class SteppedWriter(Writer):
    """A writer whose records are steps."""

    step: Step

    def append(self, event: str, *args: Any, **options: Any) -> dict[str, Any]:
        self.step(event)
        return super().append(event, *args, **options)


@dataclass(frozen=True)
class SteppedHome(Home):
    """A home at whose emergency file one looks in a step: the first thing that a look at the orders does."""

    step: Step

    @property
    def emergency_stop(self) -> str:
        self.step("look")
        return super().emergency_stop
