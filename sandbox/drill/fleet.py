"""The drill itself: a fleet is started, paused, redirected and aborted by agentbox's own commands, and looked at."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from sandbox.boxes.where import own_box
from sandbox.control import orders
from sandbox.control.status import load
from sandbox.drill import abandoned, evidence, sabotage
from sandbox.drill.ground import Ground, parsed
from sandbox.drill.sabotage import SABOTAGE
from sandbox.drill.score import Measured, Score, rows
from sandbox.drill.signals import Once
from sandbox.drill.table import Table
from sandbox.errors import USAGE, AgentboxError, Refused, number_of, warn
from sandbox.manifest.home import Home
from sandbox.reconcile.doorways import moment

FEWEST, MOST = 3, 256
LIFETIME = "15m"
"""A fleet whose drill was killed ends by itself after this time."""
STEPS = ("start", "work", "pause", "resume", "redirect", "abort", "look again", "clean up")

Tell = Callable[[str], None]
"""Is told each of STEPS when it begins."""


@dataclass
class Drill:
    """One drill. `flaw`: the sabotage, or "none". `modified`, `kept`: task ids, as the redirect has them.

    `ended`: tasks that have left. `head`: of the record, before the abort. `complete`: every act was done.
    """

    ground: Ground
    table: Table
    workers: int
    flaw: str
    tell: Tell
    score: Score
    began: float = field(default_factory=time.monotonic)
    measured: dict[str, Measured] = field(default_factory=dict)
    modified: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    head: str = ""
    complete: bool = False

    @property
    def names(self) -> list[str]:
        return [f"w{number:02d}" for number in range(self.workers)]

    def act(self, step: str) -> None:
        self.tell(step)
        self.said(step)

    def said(self, what: str) -> None:
        self.score.acts.append((round(time.monotonic() - self.began, 2), what))

    def agentbox(self, *args: str, codes: tuple[int, ...] = (0,)) -> str:
        out = self.ground.agentbox(*args, codes=codes)
        self.said(f"agentbox {' '.join(args)}")
        return out

    # the acts

    def start(self) -> None:
        self.act("start")
        self.ground.put()
        ground, folder = self.ground, self.ground.folder
        kept = self.names[-1]
        again = [ground.tree(kept), kept, *self._calls(0)] if self.flaw == "duplicate" else []
        flaw = self.flaw if self.flaw in sabotage.OF_THE_COORDINATOR else "none"
        label = f"drill={sabotage.LABEL}"
        main = ["sh", f"{folder}/bin/coordinator.sh", folder, flaw, *again]
        options = ["-d", "--timeout", LIFETIME, *ground.box()]
        self.agentbox("run", "--run-id", ground.run_id, "--label", label, *options, "--", *main)
        self._spawn(self.names)

    def _spawn(self, names: Iterable[str]) -> None:
        ground, commands = self.ground, []
        for number, name in enumerate(names):
            theirs = self.flaw not in (*sabotage.OF_THE_COORDINATOR, *sabotage.OF_THE_DRILL)
            flaw = self.flaw if name == self.names[-1] and theirs else "none"
            command = ["sh", f"{ground.folder}/bin/worker.sh", ground.folder, flaw, name, *self._calls(number)]
            options = ["-d", "--task", name, "--worktree", "--timeout", LIFETIME, *ground.box()]
            commands.append(["spawn", ground.run_id, *options, "--", *command])
        ground.agentbox_all(commands)
        self.said(f"agentbox spawn {ground.run_id}: {number_of(len(commands), 'task')}")

    def _calls(self, turn: int) -> list[str]:
        """The lengths of a worker's calls: each begins at another one."""
        calls = [f"{seconds:g}" for seconds in self.table.pace.calls]
        turn %= len(calls)
        return calls[turn:] + calls[:turn]

    def work(self, names: Iterable[str], more: int) -> None:
        """Wait until each worker has begun so many calls more, as far as it has not ended."""
        before = evidence.begun(self.ground)
        wanted = {name: before[name] + more for name in names if name not in self.ended}

        def lacking() -> list[str]:
            now = evidence.begun(self.ground)
            return [name for name, number in wanted.items() if now[name] < number]

        self._await(lacking, "made no call")

    def _await(self, lacking: Callable[[], list[str]], what: str) -> None:
        deadline = time.monotonic() + self.table.pace.patience
        while names := lacking():
            if time.monotonic() > deadline:
                fix = f"agentbox logs {self.ground.run_id} {names[0]}, with --keep"
                raise AgentboxError(f"{', '.join(names)} {what} within {self.table.pace.patience:g} s", fix=fix)
            time.sleep(0.05)

    def pause(self) -> None:
        self.act("pause")
        limit = self.table.thresholds["time_to_quiet"].investigate
        args = ("pause", self.ground.run_id, "--wait", f"{limit:g}s", "--json")
        told: Any = parsed(self.agentbox(*args, codes=(0, 1)))
        before = evidence.begun(self.ground)
        loud = [f"{task['task_id']}: {task['state']}" for task in told["tasks"] if not task["quiet"]]
        self.measured["dirty_worktrees"] = evidence.worktrees(self.ground)
        worked = [name for name, number in evidence.begun(self.ground).items() if number > before[name]]
        loud += [f"{name} worked on" for name in worked if told["quiet"]]
        value = None if loud else float(told["seconds"])
        self.measured["time_to_quiet"] = Measured(value, ", ".join(loud))

    def resume(self) -> None:
        self.act("resume")
        self.agentbox("resume", self.ground.run_id)
        self._board("resumed")
        if self.flaw == "no-gate":
            self._await(lambda: self.names[-1:] if self._lives(self.names[-1]) else [], "did not end")
            self.ended.add(self.names[-1])
        self.work(self.names, 1)

    def _lives(self, name: str) -> bool:
        return load(self.ground.home, self.ground.run_id)[0].tasks[name].state == "started"

    def _board(self, name: str) -> None:
        with open(f"{self.ground.folder}/board/{name}", "w", encoding="utf-8"):
            return

    def redirect(self) -> None:
        """A quarter of the tasks: half of those get a delta, the others are dropped and replaced."""
        self.act("redirect")
        ground, pace = self.ground, self.table.pace
        draft: Any = parsed(self.agentbox("redirect", ground.run_id, "--draft"))
        changed = max(2, self.workers // 4)
        for number, row in enumerate(draft["tasks"][:changed]):
            wish = {"action": "modify", "delta": {"instead": "the other way"}}
            row |= wish if number < changed // 2 else {"action": "drop", "why": "no longer wanted"}
        dropped = [row["task"] for row in draft["tasks"] if row["action"] == "drop"]
        self.modified = [row["task"] for row in draft["tasks"] if row["action"] == "modify"]
        self.kept = [row["task"] for row in draft["tasks"] if row["action"] == "keep"]
        before = evidence.identities(ground, self.kept)
        with open(f"{ground.folder}/plan.json", "w", encoding="utf-8") as file:
            json.dump(draft, file)
        ladder = ("--grace", f"{pace.grace:g}s", "--term", f"{pace.term:g}s")
        self.agentbox("redirect", ground.run_id, "--table", f"{ground.folder}/plan.json", *ladder, "--json")
        self.ended.update(dropped)
        new = [f"n{number:02d}" for number in range(len(dropped))]
        if self.flaw == "restart":
            self.agentbox("kill", ground.run_id, "--task", self.kept[-1])
            self.ended.add(self.kept[-1])
            new.append("again")
        self._spawn(new)
        self._board("redirected")
        self._await(lambda: [] if self._seen() else ["main"], "did not look at the board")
        self._await(lambda: sorted(set(self.modified) - evidence.told(ground)), "was not told its change")
        self.work([*self.kept, *self.modified, *new], 1)
        self.measured["duplicate_workers"] = evidence.duplicates(ground, before)

    def _seen(self) -> bool:
        try:
            with open(f"{self.ground.folder}/seen/redirected", encoding="utf-8"):
                return True
        except FileNotFoundError:
            return False

    def abort(self) -> None:
        self.act("abort")
        ground, pace = self.ground, self.table.pace
        self.head = evidence.head(ground)
        if self.flaw == "forge":
            sabotage.forge(ground)
        alive = [name for name in [*self.kept, *self.modified] if name not in self.ended]
        with sabotage.ticking(ground, alive[0]) if self.flaw == "tokens" else nullcontext():
            ladder = ("--grace", f"{pace.grace:g}s", "--term", f"{pace.term:g}s")
            args = ("abort", ground.run_id, *ladder, "--reason", "drill", "--json")
            told: Any = parsed(self.agentbox(*args, codes=(0, 1, 4)))
            self.act("look again")
            self.measured["orphans"] = evidence.orphans(ground, pace.look_again)
        self._measure(told[0], alive)

    def _measure(self, receipt: dict[str, Any], alive: list[str]) -> None:
        ground, measured = self.ground, self.measured
        ordered = moment(receipt["ordered_at"])
        empty = moment(receipt["empty_at"]) if receipt["proof"] == "empty" else None
        frozen = ", the kill ended " + str(len(receipt["processes"])) if receipt["frozen_at"] else ""
        last = receipt["rungs"][-1]["rung"] if receipt["rungs"] else "none"
        took = empty - ordered if empty is not None and ordered is not None else None
        measured["time_to_empty"] = Measured(took, f"proof: {receipt['proof']}{frozen if last == 'kill' else ''}")
        measured["tokens_after_abort"] = evidence.tokens(ground, empty, alive)
        measured["work_after_stop"] = evidence.work_after(ground, ordered)
        measured["pushes_to_main"] = evidence.pushes(ground)
        measured["record"] = evidence.record(ground, self.head)

    def all_acts(self) -> None:
        self.start()
        self.act("work")
        self.work(self.names, 2)
        self.pause()
        self.resume()
        self.redirect()
        self.abort()
        self.complete = True


def drill(
    home: Home, backend: str, workers: int, table: Table, flaw: str | None = None, keep: bool = False,
    tell: Tell = lambda step: None,
) -> Score:  # fmt: skip
    """Hold one drill and give its score; nothing of it is left unless `keep`. Raises AgentboxError if it can't be."""
    _refuse(home, backend, workers, flaw)
    with suppress(OSError):
        tempfile.gettempdir()  # it finds out with a file, once: a signal in the middle of that would leave it behind
    for line in abandoned.remove():
        warn(line)
    ground = Ground(home, backend)
    score = Score(ground.run_id, backend, workers, flaw)
    one = Drill(ground, table, workers, flaw or "none", tell, score)
    with Once() as signals:
        try:
            try:
                one.all_acts()
            finally:
                signals.hush()
        finally:
            one.act("clean up")
            ground.remove(keep)
            score.seconds = round(time.monotonic() - one.began, 2)
            if not one.complete:
                for line in ground.problems:
                    warn(f"not undone: {line}")
    score.rows = rows(one.measured, table)
    score.kept = ground.folder if keep else None
    score.problems = ground.problems
    return score


def _refuse(home: Home, backend: str, workers: int, flaw: str | None) -> None:
    if not FEWEST <= workers <= MOST:
        raise AgentboxError(f"--workers {workers} is not from {FEWEST} to {MOST}", fix="take 16", code=USAGE)
    if flaw is not None:
        sabotage.check(flaw, backend)
        assert flaw in SABOTAGE
    home.ensure()
    if own_box():
        raise Refused("a drill is not for a process inside of a box", fix="hold it from outside")
    if why := orders.emergency_stop(home.emergency_stop):
        raise Refused(why, fix="lift it with `agentbox estop --lift`")
