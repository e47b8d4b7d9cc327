"""A start and a stop, step by step: each two of their steps in both orders, or whole orders as they are drawn.

usage: python -m tests.proof.interleaving SCENE BACKEND pairs|drawn MOST SEED, with AGENTBOX_HOME set. `pairs`: see
orders.pairs; MOST bounds their number (0: no bound), SEED draws them. `drawn`: MOST whole orders, drawn by SEED.
Prints {"scene", "backend", "played", "orders": different ones, "steps": {side: [name]}, "seen": {how it came out:
count}, "pairs": how many times one step before another of the other side was met, each counted once, "never":
{why it can't be: count}, "missing": [what was not met, and could be], "against_the_rules": [what was met, and could not
be], "faults": [...]}.

The two sides are the project's own `start` and `kill`, each in a thread, on real boxes. What they are given (backend,
home, record, child) stands still at each step of either until it is that side's turn: the looks at the
order, the intent, the box, the fork, the record, the release; the order, the looks for boxes, the freeze, the kill.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from sandbox.boxes.base import Backend, Box
from sandbox.boxes.docker_containers import Containers
from sandbox.boxes.registry import backend as backend_named
from sandbox.control.request import record, settle, target_of
from sandbox.control.stop import Stop, begin, kill
from sandbox.errors import AgentboxError, Refused
from sandbox.launch.run import prepare
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.start import Started, start
from sandbox.manifest.home import Home
from sandbox.manifest.verify import verify
from tests.beds import space
from tests.beds.dockerd import IMAGE
from tests.cli.runs import parent_box
from tests.proof.causes import asked_for, why_not
from tests.proof.orders import Coverage, Made, Order, directed, drawn, pairs
from tests.proof.stage import (
    PATIENCE,
    START,
    STOP,
    Stage,
    Step,
    SteppedBackend,
    SteppedHome,
    SteppedTarget,
    SteppedWriter,
)

NOTHING = ("nothing", lambda: None)
Work = Callable[[], None]


@dataclass
class Outcome:
    started: Started | None = None
    error: BaseException | None = None
    stop: Stop | None = None
    stop_error: BaseException | None = None
    alive_when_answered: bool = False


@dataclass(frozen=True)
class Scene:
    """`run`: a run's start against its stop; `spawn`: a task's against the run's stop; `task`: against its own."""

    name: str
    backend: str
    home: Home

    def spec(self, run_id: str, task: str, command: str) -> LaunchSpec:
        image = IMAGE if self.backend == "docker" else None
        return LaunchSpec(
            run_id,
            task,
            [b"/bin/sh", b"-c", command.encode()],
            new_run=task == "main",
            backend=self.backend,
            image=image,
            container={"image": image} if image else {},
        )

    def eyes(self) -> Backend:
        """A backend that has nothing to do with either side."""
        return backend_named(self.backend, self.home.path)

    def target(self, run_id: str, task: str | None, step: Step) -> SteppedTarget:
        """What `agentbox kill` would act on; backends that have nothing of it here go in no steps."""
        asked = ("cgroup", "docker") if self.backend == "docker" else (self.backend,)
        return SteppedTarget.of(target_of(self.home, run_id, task), asked, step)


class Play:
    """One order of one scene, on a run of its own."""

    numbers = iter(range(1 << 30))

    def __init__(self, scene: Scene) -> None:
        self.scene, self.home = scene, scene.home
        self.run_id = f"i-{os.getpid()}-{next(self.numbers)}"
        self.task = "main" if scene.name == "run" else "t"
        self.stopped = self.task if scene.name == "task" else None
        self.ran = Path(f"{self.home.path}.{self.run_id}")
        self.outcome = Outcome()
        self.main = self.launched() if scene.name != "run" else None
        self.eyes = scene.eyes()

    def launched(self) -> Started:
        """A run with a main task that lives."""
        spec = self.scene.spec(self.run_id, "main", "exec sleep 900")
        run, writer, inner = prepare(spec, self.home)
        free = SteppedBackend(inner, lambda name: None)
        return start(spec, self.home, run, writer, free, [], NOTHING)

    def play(self, chosen: Order) -> Made:
        """`chosen`, then the stop first wherever both could go on."""
        stage = Stage(self.held)
        threads = [stage.act(START, self.starting(stage.step)), stage.act(STOP, self.stopping(stage.step))]
        steps: list[tuple[str, str]] = []
        could: list[tuple[str, ...]] = []
        while choices := stage.choices():
            wanted = chosen[len(steps)] if len(steps) < len(chosen) else STOP
            side = wanted if wanted in choices else next(iter(choices))
            could.append(tuple(choices))
            steps.append((side, choices[side]))
            stage.let_go(side)
        for thread in threads:
            thread.join(PATIENCE)
        self.judge()
        return Made(tuple(steps), tuple(could))

    def starting(self, step: Step) -> Work:
        touch = f"echo > {self.ran}; " if self.scene.backend != "docker" else ""
        spec = self.scene.spec(self.run_id, self.task, f"{touch}exec sleep 900")
        run, writer, inner = prepare(spec, self.home)
        stepped, home = SteppedBackend(inner, step), SteppedHome(self.home.path, step)
        stepped_writer = SteppedWriter(writer.path, self.run_id, writer.by)
        stepped_writer.step = step

        def work() -> None:
            try:
                self.outcome.started = start(spec, home, run, stepped_writer, stepped, [], NOTHING)
            except BaseException as error:
                self.outcome.error = error

        return work

    def stopping(self, step: Step) -> Work:
        """As request.carry_out does it for one target."""

        def work() -> None:
            target = self.scene.target(self.run_id, self.stopped, step)
            try:
                target.locate()
                step("order")
                target.part = "round 1"
                stop = self.outcome.stop = kill(target, begin(target, "every order", "a test"))
                self.outcome.alive_when_answered = self.at_work()
                step("receipt")
                record(self.home, stop)
                target.part = "settle"
                settle(self.home, target, stop)
            except BaseException as error:
                self.outcome.stop_error = error

        return work

    def held(self) -> bool:
        """Is the task that is being started in a frozen box?"""
        box = parent_box(self.run_id)
        with suppress(OSError):
            for own in box.iterdir() if box else ():
                if own.name == self.task or own.name.endswith(f"-{self.task}.scope"):
                    frozen = any((place / "cgroup.freeze").read_text() == "1\n" for place in (own, own.parent))
                    return frozen and space.populated(own)
        return False

    def at_work(self) -> bool:
        """Does what was to be stopped live, and not just wait at its barrier?"""
        return (self.scene.backend == "docker" or self.ran.exists()) and self.lives()

    def lives(self) -> bool:
        box = self.eyes.find(self.run_id, self.stopped) if self.stopped else None
        boxes: list[Box] = self.eyes.parents(self.run_id) if self.stopped is None else [box] if box else []
        return any(self.eyes.populated(box) != "empty" for box in boxes)

    def judge(self) -> None:
        outcome, stop = self.outcome, self.outcome.stop
        assert outcome.stop_error is None, repr(outcome.stop_error)
        assert stop is not None and stop.proof == "empty" and stop.recorded, stop
        assert not outcome.alive_when_answered, "it lived when the stop was answered"
        assert not self.lives(), "it lives after both"
        if outcome.started is not None:
            assert self.gone(outcome.started), "started, and alive"
        else:
            assert isinstance(outcome.error, Refused), repr(outcome.error)
        if self.main is not None:
            ends = self.stopped is None
            assert self.gone(self.main) if ends else space.is_alive(self.main.pid), "the main task"
        if self.scene.backend == "docker":
            whole_run = Box("docker", "", self.run_id, None)
            made = [one.name for one in Containers(self.home.path, print).of(whole_run) if one.never_started]
            assert not made, f"made, never started, and left: {made}"

    def gone(self, one: Started) -> bool:
        """What stands for a container ends a moment after it."""
        deadline = time.monotonic() + (10 if self.scene.backend == "docker" else 0)
        while space.is_alive(one.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        return not space.is_alive(one.pid)

    def clean_up(self) -> None:
        if self.scene.backend == "docker":
            Containers(self.home.path, print).remove(Box("docker", "", self.run_id, None))
        for started in (self.outcome.started, self.main):
            if started is not None:
                with suppress(ProcessLookupError):
                    os.kill(started.pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(started.pid, 0)
        for box in self.eyes.parents(self.run_id):
            self.eyes.destroy(box)
        if box_left := parent_box(self.run_id):
            assert space.end_tree(box_left)
        self.ran.unlink(missing_ok=True)


def played(scene: Scene, how: str, most: int, seed: int) -> dict[str, object]:
    scene.home.ensure()
    backend_named(scene.backend, scene.home.path).probe()
    seen: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    coverage = Coverage()

    def one(chosen: Order) -> Made:
        play = Play(scene)
        try:
            made = play.play(chosen)
            assert verify(scene.home.run_dir(play.run_id).manifest).whole
            return made
        except (AssertionError, AgentboxError) as error:
            faults.append(f"{scene.name} on {scene.backend}, {' '.join(chosen[:60])}: {error}")
            raise
        finally:
            play.clean_up()

    wanted = partial(asked_for, scene.name, scene.backend)
    why = partial(why_not, scene.name, scene.backend)
    further = directed(one, coverage, wanted) if how == "pairs" and not most else ()
    with suppress(AssertionError, AgentboxError):
        for made in chain((pairs if how == "pairs" else drawn)(one, most, seed), further):
            coverage.add(made)
            seen["the start ended first" if made.order[-1] == STOP else "the stop ended first"] += 1
    missing = coverage.missing()
    never = collections.Counter(why(*pair) for pair in missing)
    return {
        "scene": scene.name,
        "backend": scene.backend,
        "played": sum(seen.values()),
        "orders": len(coverage.plays),
        "steps": {side: list(found) for side, found in coverage.steps.items()},
        "seen": dict(seen),
        "pairs": len(coverage.seen),
        "never": {reason: count for reason, count in never.items() if reason},
        "missing": [" before ".join(pair) for pair in missing if wanted(*pair)],
        "against_the_rules": [" before ".join(pair) for pair in coverage.seen if why(*pair)],
        "faults": faults,
    }


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    chosen_scene = Scene(sys.argv[1], sys.argv[2], Home.locate())
    print(json.dumps(played(chosen_scene, sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
