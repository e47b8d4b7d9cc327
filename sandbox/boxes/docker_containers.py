"""The containers of a run or task, through the engine alone: seen, held, and ended for good.

Nothing here touches a process or a cgroup: the pids that an engine tells are those of its own host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from sandbox.boxes.base import Box, Proof, Unavailable
from sandbox.boxes.docker_engine import ASK_SECONDS, RUN, TASK, Container, Engine, NotThere, Rejected, left
from sandbox.boxes.docker_slices import run_of
from sandbox.kernel.procfs import Member

SETTLE_SECONDS = 0.02
"""Between two looks at a container that is on its way down; it doubles up to ten times that."""


class Containers:
    """Those of one AGENTBOX_HOME. `tell`: called with a line about what was met. Every method raises Unavailable."""

    def __init__(self, home: str, tell: Callable[[str], None]) -> None:
        self.home = home
        self.tell = tell
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        self._engine = self._engine or Engine(ASK_SECONDS)
        return self._engine

    def of(self, box: Box, seconds: float = ASK_SECONDS) -> list[Container]:
        """A box's containers, running or not, as the engine sees them now."""
        deadline = time.monotonic() + seconds
        rows = self.engine.ours(self.home, box.run_id, left(deadline, ASK_SECONDS))
        ids = [row["Id"] for row in rows if box.task_id in (None, row["Labels"].get(TASK))]
        return self._inspect(ids, deadline)

    def living(self, run_id: str | None = None) -> list[Container]:
        """Those that run, may come to run, or would come back. Ended ones are no boxes any more."""
        rows = self.engine.ours(self.home, run_id)
        # Of all runs only the ones that are up are looked at closely: ended containers are kept, and pile up.
        ids = [row["Id"] for row in rows if run_id or row.get("State") not in ("exited", "dead")]
        states = self._inspect(ids, time.monotonic() + ASK_SECONDS)
        return [state for state in states if not (state.ended and state.stays_down)]

    def _inspect(self, ids: Sequence[str], deadline: float) -> list[Container]:
        found = []
        for one in ids:
            try:
                found.append(self.engine.inspect(one, left(deadline, ASK_SECONDS)))
            except NotThere:
                continue
        return found

    def processes(self, box: Box, seconds: float) -> list[Member]:
        return [member for state in self.of(box, seconds) if not state.down for member in self._top(state, seconds)]

    def _top(self, state: Container, seconds: float) -> list[Member]:
        answer = self.engine.bounded(seconds, lambda: self.engine.api.top(state.id))
        titles = [str(title).upper() for title in answer["Titles"]]
        pid, command = titles.index("PID"), len(titles) - 1
        rows: Sequence[Sequence[Any]] = answer["Processes"] or ()
        where = f"container {state.name}"
        return [Member(int(row[pid]), argv=str(row[command]).split(" "), cgroup=where) for row in rows]

    def pause(self, box: Box, deadline: float) -> bool:
        """True once all of the box that runs is paused."""
        for state in self.of(box, left(deadline, ASK_SECONDS)):
            if not (state.down or state.paused):
                self.act("pause", state, deadline)
        return all(state.paused or state.down for state in self.of(box, left(deadline, ASK_SECONDS)))

    def unpause(self, box: Box) -> None:
        for state in self.of(box):
            if state.paused:
                self.act("unpause", state, time.monotonic() + ASK_SECONDS)

    def signal(self, box: Box, number: int, skip: frozenset[int] = frozenset()) -> list[int]:
        """To each container's main process; returns the engine's pid of those that it could not be sent to."""
        deadline = time.monotonic() + ASK_SECONDS
        running = [state for state in self.of(box) if not state.down and state.pid not in skip]
        return [state.pid for state in running if not self.act("kill", state, deadline, signal=number)]

    def end(self, box: Box, deadline: float) -> Proof:
        """Kill the box's containers, remove those that never started; `empty` once all are down for good or gone.

        All get their step before any is looked at again, and one that hangs costs the others no more than a look.
        """
        pause = SETTLE_SECONDS
        while True:
            rows = self.engine.ours(self.home, box.run_id, left(deadline, ASK_SECONDS))
            ids = [row["Id"] for row in rows if box.task_id in (None, row["Labels"].get(TASK))]
            answers = {self._bring_down(one, deadline) for one in ids}
            proof: Proof = "alive" if False in answers else "unknown" if None in answers else "empty"
            if proof == "empty" or time.monotonic() >= deadline:
                return proof
            time.sleep(pause)
            pause = min(2 * pause, 10 * SETTLE_SECONDS)

    def _bring_down(self, one: str, deadline: float) -> bool | None:
        """One step; True if the container is down for good or gone, None if the engine did not tell."""
        try:
            state = self.engine.inspect(one, left(deadline, ASK_SECONDS / 2))
            if not (state.ended and state.stays_down):
                self._step(state, deadline)
                return False
        except NotThere:
            return True
        except Unavailable:
            return None
        return True

    def _step(self, state: Container, deadline: float) -> None:
        """What brings a container nearer to its end; what it met is looked at again after it."""
        if not state.stays_down:
            self.tell(f"container {state.name} had restart policy {state.policy}, which was set from outside")
            self.act("update_container", state, deadline, restart_policy={"Name": "no"})
        if state.down:
            # No force: one that a start has just brought up is to be killed, and kept.
            self.act("remove_container", state, deadline, v=True) if state.never_started else None
        elif not self.act("kill", state, deadline) and state.paused:
            # Some engines refuse to kill what is paused.
            self.act("unpause", state, deadline)

    def remove_unstarted(self, box: Box) -> bool:
        """False if something of the box is not down."""
        states = self.of(box)
        for state in states:
            if state.never_started and state.down:
                self.act("remove_container", state, time.monotonic() + ASK_SECONDS, v=True)
        return all(state.down for state in states)

    def remove(self, box: Box) -> None:
        """Remove the box's containers, whatever they do: for those that nobody wants to look at after."""
        for state in self.of(box):
            self.act("remove_container", state, time.monotonic() + ASK_SECONDS, force=True, v=True)

    def act(self, verb: str, state: Container, deadline: float, **options: object) -> bool:
        """One call on a container by its full id; False if the engine refused it."""
        call = getattr(self.engine.api, verb)
        try:
            self.engine.bounded(left(deadline, 2 * ASK_SECONDS), lambda: call(state.id, **options))
        except Rejected:
            return False
        return True


def parent_id(run_id: str) -> str:
    """What a run's parent box is called here: the label that its containers share."""
    return f"{RUN}={run_id}"


def own_directory(state: Container, is_ours: Callable[[str], bool]) -> str | None:
    """The task's directory by its label, if this host has it below a run of that name of ours."""
    path = state.cgroup
    parent = os.path.dirname(path)
    if not path or run_of(parent) != state.run_id or not os.path.isdir(path):
        return None
    return path if is_ours(parent) else None
