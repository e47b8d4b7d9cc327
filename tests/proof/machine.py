"""Any order of verbs, crashes and reboots, against a model of what must be true after each.

usage: python -m tests.proof.machine EXAMPLES STEPS [SEED], with AGENTBOX_HOME set. Without a SEED it plays the same
each time. Ends with 1 and the story that went wrong, as hypothesis tells it.

Real cgroups; each verb is a fork of this process. A reboot is the end of all at once, after which this process, and
so each fork of it, remembers another boot id.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import shutil
import signal
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
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
from sandbox.manifest.home import Home
from sandbox.manifest.verify import verify
from tests.beds import space
from tests.cli.runs import parent_box
from tests.proof.crashes import load_everything
from tests.stop import rounds
from tests.stop.rounds import call, code_of, said, settled, until

COMMAND = ["sh", "-c", "sleep 900 & setsid sleep 900 & wait"]
MOST_RUNS = 3
PICK = st.integers(0, MOST_RUNS - 1)
KIND = st.sampled_from(["kill", "abort"])
seen: collections.Counter[str] = collections.Counter()


@dataclass
class Model:
    """What must be so of a run. `word`: its order. `stopped`: a stop of it was answered with 0, or it came to its end.

    `watched`: tasks whose launcher lives, `unwatched`: those whose launcher was killed.
    """

    run_id: str
    word: str = "RUN"
    stopped: bool = False
    lost: bool = False
    watched: set[str] = field(default_factory=lambda: {"main"})
    unwatched: set[str] = field(default_factory=set)

    @property
    def live(self) -> bool:
        return not self.stopped and not self.lost

    @property
    def others(self) -> list[str]:
        """The live tasks but main."""
        return sorted((self.watched | self.unwatched) - {"main"})

    def ends(self) -> None:
        self.word, self.stopped, self.lost, self.watched, self.unwatched = "STOP", True, False, set(), set()


class Fleet(RuleBasedStateMachine):
    """A few runs of one home, a run of another, and a process beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Home.locate().ensure()
        self.runs: list[Model] = []
        self.emergency = False
        self.twin = os.posix_spawnp("sleep", ["sleep", "900"], os.environ, setpgroup=0)

    # verbs

    @initialize()
    def one_run(self) -> None:
        self.run()
        self.spawn(0)

    @precondition(lambda self: sum(run.live for run in self.runs) < MOST_RUNS)
    @rule()
    def run(self) -> None:
        run_id = f"m-{uuid.uuid4().hex[:10]}"
        code = self.verb("run", "-d", "--run-id", run_id, "--backend", "cgroup", "--", *COMMAND)
        assert code == (75 if self.emergency else 0), code
        if code == 0:
            self.runs.append(Model(run_id))

    @precondition(lambda self: bool(self.runs))
    @rule(pick=PICK)
    def spawn(self, pick: int) -> None:
        run = self.one(pick)
        task = f"t{len(run.watched) + len(run.unwatched)}-{uuid.uuid4().hex[:4]}"
        code = self.verb("spawn", "-d", run.run_id, "--task", task, "--", *COMMAND)
        if self.emergency or run.word != "RUN":
            assert code == 75, code
        elif run.lost:
            assert code in (0, 75, 125), code
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
        assert code == (75 if run.word == "STOP" or self.emergency else 0), code
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
        box = parent_box(run.run_id)
        assert box is not None and not space.populated(box / others[0])
        run.watched.discard(others[0])
        run.unwatched.discard(others[0])

    @precondition(lambda self: any(run.live for run in self.runs))
    @rule()
    def estop(self) -> None:
        assert self.verb("estop") == 0
        self.emergency = True
        for run in self.runs:
            if run.live:
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
            # Only what nobody watches is ended.
            if run.live and "main" in run.unwatched:
                run.ends()
            run.unwatched.clear()

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
        boxes = [box for run in self.runs if (box := parent_box(run.run_id))]
        for pid in self.others():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for box in boxes:
            assert space.end_tree(box)
        until(lambda: settled() or not self.others(), "the power cut")
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
        assert space.is_alive(self.twin)

    @invariant()
    def record_and_kernel_agree(self) -> None:
        for run in self.runs:
            one = status(self.home, run.run_id)
            if run.live:
                states = ("leftovers",) if not (run.watched | run.unwatched) else ("running", "paused")
                assert one.proof == "alive" and one.state in states, (one.state, one.why, run)
            elif run.lost:
                assert one.proof == "empty" and one.state == "lost", (one.state, one.why, run)
            else:
                # A launcher may be on its way to record the end.
                assert one.proof == "empty", (one.state, run)

    def teardown(self) -> None:
        try:
            self.all_is_over()
        finally:
            os.kill(self.twin, signal.SIGKILL)
            for run in self.runs:
                if box := parent_box(run.run_id):
                    space.end_tree(box)
            until(settled, "an end of all processes")

    def all_is_over(self) -> None:
        self.come_to_rest()
        self.findings("--kill")
        for run in self.runs:
            assert self.verb("kill", run.run_id) == 0
            assert verify(self.home.run_dir(run.run_id).manifest).whole
        if self.emergency:
            self.verb("estop", "--lift")
        until(lambda: not self.others(), "an end of all processes")
        assert self.findings("--kill") == []
        assert not [run for run in self.runs if parent_box(run.run_id)]
        assert all(status(self.home, run.run_id).state in ENDED for run in self.runs)
        for run in self.runs:
            shutil.rmtree(self.home.run_dir(run.run_id).path)

    # small parts

    def one(self, pick: int, among: list[Model] | None = None) -> Model:
        """One of those, the youngest for 0."""
        chosen = among or self.runs
        return chosen[-1 - pick % len(chosen)]

    def verb(self, *words: str) -> int:
        pid = call(*words)
        code = code_of(pid, words[0])
        text = said(pid)
        seen[f"{words[0]} {code}"] += 1
        assert "Traceback" not in text and "unexpected" not in text, (words, text)
        return code

    def findings(self, *options: str) -> list[dict[str, Any]]:
        """What `reconcile --json` finds; with --kill, what it leaves of it."""
        out = f"{self.home.path}.json"
        pid = call("reconcile", "--json", *options, out=out)
        seen[" ".join(("reconcile", *options))] += 1
        code = code_of(pid, "reconcile")
        text = said(pid)
        found = json.loads(Path(out).read_text())
        assert code == (0 if options or not found["findings"] else 1), (code, found, text)
        assert found["not_asked"] == []
        seen.update(f"finding {one['kind']}" for one in found["findings"])
        ended = {(one["kind"], one["run_id"], one["task_id"]) for one in found.get("ended", ()) if one["ok"]}
        left = [one for one in found["findings"] if (one["kind"], one["run_id"], one["task_id"]) not in ended]
        return left if options else list(found["findings"])

    def named(self, found: list[dict[str, Any]]) -> None:
        """Where record and kernel differ, a finding says so; where they don't, none does."""
        got = {(one["run_id"], one["kind"]) for one in found}
        for run in self.runs:
            kinds = {kind for run_id, kind in got if run_id == run.run_id}
            if run.lost:
                assert kinds <= {"lost"}, (run, found)
            elif run.stopped:
                assert kinds <= {"leftover_cgroup", "lost"}, (run, found)
            elif run.unwatched:
                assert kinds == {"orphan"}, (run, found)
            else:
                assert not kinds, (run, found)

    def come_to_rest(self) -> None:
        """Launchers of what has ended are through."""
        over = [run for run in self.runs if not run.live]
        until(lambda: not any(status(self.home, run.run_id).launcher_alive for run in over), "the launchers' ends")

    def others(self) -> list[int]:
        settled()
        return [pid for pid in rounds.children() if pid != self.twin and space.is_alive(pid)]


def marked(run_id: str) -> list[int]:
    """Live processes that carry the run's id in their environment, wherever they are; not its launchers."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and f"AGENTBOX_RUN_ID={run_id}\0".encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return [pid for pid in found if space.is_alive(pid)]


def main(examples: int, steps: int, number: int | None) -> None:
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
    factory = Fleet if number is None else seed(number)(Fleet)
    run_state_machine_as_test(factory, settings=chosen)
    print(json.dumps(seen))


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    load_everything()
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
