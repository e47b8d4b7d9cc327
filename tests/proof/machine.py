"""Any order of verbs, crashes and reboots, against a model of what must be true after each.

usage: python -m tests.proof.machine BACKEND EXAMPLES STEPS [SEED], with AGENTBOX_HOME set, and DOCKER_HOST for docker.
Without a SEED it plays the same each time. Ends with 1 and the story that went wrong, as hypothesis tells it.

Real boxes; each verb is a fork of this process. A reboot is the end of all at once, after which this process, and
so each fork of it, remembers another boot id.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import shutil
import signal
import sys
import uuid
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandbox.control.orders import read_order
from sandbox.control.status import ENDED, launcher_identity, status
from sandbox.kernel import identity
from sandbox.manifest.verify import verify
from tests.beds import space
from tests.cli.runs import parent_box
from tests.proof.crashes import load_everything
from tests.proof.player import Model, Player, marked, seen
from tests.stop.rounds import settled, until

MOST_RUNS = 3
PICK = st.integers(0, MOST_RUNS - 1)
KIND = st.sampled_from(["kill", "abort"])
ACTIONS = ("keep", "modify", "drop", "forget")
TABLE = st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=3)
WORDS = {"keep": {}, "modify": {"delta": "use the new API"}, "drop": {"why": "not needed any more"}}


class Fleet(RuleBasedStateMachine):
    """A few runs of one home, a run of another, and a process beside them."""

    backend = "cgroup"

    def __init__(self) -> None:
        super().__init__()
        self.player = Player(self.backend)
        self.home, self.verb, self.findings = self.player.home, self.player.verb, self.player.findings
        self.runs: list[Model] = []
        self.emergency = False

    # verbs

    @initialize(actions=TABLE)
    def one_run(self, actions: list[str]) -> None:
        self.run()
        self.spawn(0)
        self.spawn(0)
        self.redirect(0, actions)

    @precondition(lambda self: sum(run.live for run in self.runs) < MOST_RUNS)
    @rule()
    def run(self) -> None:
        run_id = f"m-{uuid.uuid4().hex[:10]}"
        code = self.player.launch("run", "--run-id", run_id)
        assert code == (75 if self.emergency else 0), code
        if code == 0:
            self.runs.append(Model(run_id))

    @precondition(lambda self: bool(self.runs))
    @rule(pick=PICK)
    def spawn(self, pick: int) -> None:
        run = self.one(pick)
        task = f"t{len(run.watched) + len(run.unwatched)}-{uuid.uuid4().hex[:4]}"
        code = self.player.launch("spawn", run.run_id, "--task", task)
        if self.emergency or run.word != "RUN":
            assert code == 75, code
        elif run.lost:
            assert code == 75 if run.closed else code in (0, 75, 125), code
            run.lost = code != 0
        else:
            assert code == 0, code
        if code == 0:
            run.watched.add(task)

    @precondition(lambda self: bool(self.runs))
    @rule(pick=PICK)
    def pause(self, pick: int) -> None:
        run = self.one(pick)
        code = self.verb("pause", run.run_id)
        assert code in ((75,) if run.word == "STOP" else (0, 1)), code
        if run.word != "STOP":
            run.word = "PAUSE"

    @precondition(lambda self: bool(self.runs))
    @rule(pick=PICK)
    def resume(self, pick: int) -> None:
        run = self.one(pick)
        code = self.verb("resume", run.run_id)
        assert code == (75 if run.word == "STOP" or run.closed or self.emergency else 0), code
        if code == 0:
            run.word = "RUN"

    @precondition(lambda self: bool(self.runs))
    @rule(pick=PICK, how=KIND)
    def stop(self, pick: int, how: str) -> None:
        run = self.one(pick)
        words = ["--grace", "0", "--term", "0.2s"] if how == "abort" else []
        assert self.verb(how, run.run_id, *words) == 0
        run.ends()

    @precondition(lambda self: any(run.live and run.others for run in self.runs))
    @rule(pick=PICK, how=KIND)
    def stop_task(self, pick: int, how: str) -> None:
        run = self.one(pick, [run for run in self.runs if run.live and run.others])
        others = run.others
        words = ["--grace", "0", "--term", "0.2s"] if how == "abort" else []
        assert self.verb(how, run.run_id, "--task", others[0], *words) == 0
        assert not self.player.members(run.run_id, others[0])
        run.task_ends(others[0])

    @precondition(lambda self: any(run.live and run.others for run in self.runs))
    @rule(pick=PICK, actions=TABLE)
    def redirect(self, pick: int, actions: list[str]) -> None:
        """Kept tasks live on as they were, modified ones with their delta, dropped ones end.

        `forget` leaves a task out, and the whole table is refused.
        """
        run = self.one(pick, [run for run in self.runs if run.live and run.others])
        until(lambda: self.in_flight(run) == run.others, "the ends of other tasks are recorded")
        what = dict(zip(run.others, itertools.cycle(actions), strict=False))
        rows = [{"task": task, "action": action, **WORDS[action]} for task, action in what.items() if action in WORDS]
        before = {task: self.player.look_at(run, task) for task in what}
        refused = "forget" in what.values()
        code = self.player.redirect(run.run_id, rows)
        assert code == (2 if refused else 0), (code, run, rows)
        for task, action in what.items():
            seen[f"{'refused' if refused else action}"] += 1
            if action == "drop" and not refused:
                assert read_order(self.home.run_dir(run.run_id).task_order(task)).word == "STOP"
                assert not self.player.members(run.run_id, task), (run, task)
                run.task_ends(task)
                continue
            change = json.dumps({"task": task, "delta": WORDS["modify"]["delta"]}).encode() + b"\n"
            steer = before[task].steer + (change if action == "modify" and not refused else b"")
            self.player.lives_on(run, task, before[task], steer)

    @precondition(lambda self: any(not run.live for run in self.runs))
    @rule(pick=PICK)
    def redirect_what_is_over(self, pick: int) -> None:
        run = self.one(pick, [run for run in self.runs if not run.live])
        code = self.player.redirect(run.run_id, [])
        assert code == (75 if run.word == "STOP" else 2), (code, run)

    @precondition(lambda self: any(run.live for run in self.runs))
    @rule()
    def estop(self) -> None:
        assert self.verb("estop") == 0
        self.emergency = True
        for run in self.runs:
            # The engine may still start a container of a run of which no end is recorded.
            if run.live or (self.backend == "docker" and run.lost and not run.closed):
                run.ends()

    @precondition(lambda self: self.emergency)
    @rule()
    def lift(self) -> None:
        assert self.verb("estop", "--lift") == 0
        self.emergency = False

    @rule()
    def reconcile(self) -> None:
        """Once with --kill is as twice, and as once without after it; twice without is as once."""
        self.come_to_rest()
        first, again = self.findings(), self.findings()
        assert [one["kind"] for one in first] == [one["kind"] for one in again], (first, again)
        self.named(first)
        self.findings("--kill")
        assert self.findings("--kill") == []
        assert self.findings() == []
        for run in self.runs:
            # Only what nobody watches is ended, and what is left where main is gone.
            if run.live and "main" not in run.watched:
                run.ends()
            for task in sorted(run.unwatched):
                run.task_ends(task)
            run.closed = run.closed or run.lost

    # accidents

    @precondition(lambda self: any(run.live and run.watched for run in self.runs))
    @rule(pick=PICK, main=st.booleans())
    def launcher_dies(self, pick: int, main: bool) -> None:
        run = self.one(pick, [run for run in self.runs if run.live and run.watched])
        victims = sorted(run.watched, key=lambda task: (task == "main") is not main)
        known = status(self.home, run.run_id).run.tasks[victims[0]]
        launcher = launcher_identity(known)
        assert launcher is not None and launcher.signal(signal.SIGKILL)
        until(lambda: settled() or launcher.alive() is False, "the launcher's end")
        run.watched.discard(victims[0])
        run.unwatched.add(victims[0])

    @precondition(lambda self: any(run.live and "main" in run.watched for run in self.runs))
    @rule(pick=PICK)
    def command_ends(self, pick: int) -> None:
        """The main command comes to its end, and its launcher ends the rest."""
        run = self.one(pick, [run for run in self.runs if run.live and "main" in run.watched])
        pid = status(self.home, run.run_id).run.tasks["main"].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: settled() or status(self.home, run.run_id).state in ENDED, "the run's end")
        run.ends()

    @precondition(lambda self: bool(self.runs))
    @rule()
    def reboot(self) -> None:
        self.player.power_cut([run.run_id for run in self.runs])
        identity._boot_id = str(uuid.uuid4())
        for run in self.runs:
            if run.live:
                run.lost, run.watched, run.unwatched = True, set(), set()

    # what is always so

    @invariant()
    def nothing_of_a_stopped_run_lives(self) -> None:
        for run in self.runs:
            if not run.live:
                box = parent_box(run.run_id)
                assert box is None or not space.populated(box), (run, space.members(box))
                assert not marked(run.run_id), run

    @invariant()
    def orders_are_as_given(self) -> None:
        for run in self.runs:
            order = read_order(self.home.run_dir(run.run_id).control)
            assert order.trusted and order.word == run.word, (order, run)

    @invariant()
    def the_bystander_lives(self) -> None:
        assert space.is_alive(self.player.twin)

    @invariant()
    def record_and_kernel_agree(self) -> None:
        for run in self.runs:
            one = status(self.home, run.run_id)
            if run.live:
                assert one.proof == "alive" and one.state in ("running", "paused"), (one.state, one.why, run)
            elif run.lost:
                assert one.proof == "empty" and one.state == "lost", (one.state, one.why, run)
            else:
                # A launcher may be on its way to record the end.
                assert one.proof == "empty", (one.state, run)

    def teardown(self) -> None:
        try:
            self.all_is_over()
        finally:
            os.kill(self.player.twin, signal.SIGKILL)
            self.player.remove([run.run_id for run in self.runs])

    def all_is_over(self) -> None:
        self.come_to_rest()
        self.findings("--kill")
        for run in self.runs:
            assert self.verb("kill", run.run_id) == 0
            assert verify(self.home.run_dir(run.run_id).manifest).whole
        if self.emergency:
            self.verb("estop", "--lift")
        until(lambda: not self.player.others(), "an end of all processes")
        assert self.findings("--kill") == []
        assert not [run for run in self.runs if parent_box(run.run_id)]
        assert all(status(self.home, run.run_id).state in ENDED for run in self.runs)
        for run in self.runs:
            shutil.rmtree(self.home.run_dir(run.run_id).path)

    # small parts

    def in_flight(self, run: Model) -> list[str]:
        code, draft = self.player.told("redirect", run.run_id, "--draft")
        assert code == 0, code
        return [row["task"] for row in draft["tasks"]]

    def one(self, pick: int, among: list[Model] | None = None) -> Model:
        """One of those, the youngest for 0."""
        chosen = among or self.runs
        return chosen[-1 - pick % len(chosen)]

    def named(self, found: list[dict[str, Any]]) -> None:
        """Where record and kernel differ, a finding says so; where they don't, none does."""
        got = {(one["run_id"], one["kind"]) for one in found}
        for run in self.runs:
            kinds = {kind for run_id, kind in got if run_id == run.run_id}
            if run.lost:
                assert kinds <= {"lost"}, (run, found)
            elif run.stopped:
                assert kinds <= {"leftover_cgroup", "lost"}, (run, found)
            elif "main" not in run.watched | run.unwatched:
                assert kinds and kinds <= {"leftovers", "orphan"}, (run, found)
            elif run.unwatched:
                assert kinds == {"orphan"}, (run, found)
            else:
                assert not kinds, (run, found)

    def come_to_rest(self) -> None:
        """Launchers of what has ended are through."""
        over = [run for run in self.runs if not run.live]
        until(lambda: not any(status(self.home, run.run_id).launcher_alive for run in over), "the launchers' ends")


def main(backend: str, examples: int, steps: int, number: int | None) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=number is None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # to shorten a story takes minutes
    )
    Fleet.backend = backend
    factory = Fleet if number is None else seed(number)(Fleet)
    run_state_machine_as_test(factory, settings=chosen)
    print(json.dumps(seen))


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    load_everything()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
