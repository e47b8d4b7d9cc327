"""What the keys of `top` do: the same paths as the verbs, each in a thread, so that the screen and its keys go on."""

from __future__ import annotations

import os
from collections.abc import Callable

from sandbox.cli.stopping import ended_text
from sandbox.control import pause
from sandbox.control.emergency import emergency_stop
from sandbox.control.ladder import GRACE, TERM, abort
from sandbox.control.request import Act, carry_out, target_of
from sandbox.control.stop import Stop, kill
from sandbox.errors import AgentboxError, number_of
from sandbox.kernel.background import Background
from sandbox.manifest.home import Home

REASON = "asked for in top"
WORDS = {"p": "pause", "r": "resume", "A": "abort", "K": "kill"}


class Actions:
    """`told`: called from the action's thread with one line for people, when it begins and when it is done."""

    def __init__(self, home: Home, told: Callable[[str], None]) -> None:
        self.home, self.told = home, told
        self._threads: list[tuple[str, Background]] = []

    def begin(self, key: str, run_id: str, task_id: str | None) -> None:
        """`key` of WORDS, on a run or one task of it."""
        name = f"{WORDS[key]} {run_id}" + (f" task {task_id}" if task_id else "")
        work = {
            "p": lambda: self._pause(run_id, task_id),
            "r": lambda: self._resume(run_id, task_id),
            "A": lambda: self._stop(run_id, task_id, abort, GRACE + TERM),
            "K": lambda: self._stop(run_id, task_id, kill, 0.0),
        }[key]
        self._start(name, work)

    def emergency(self) -> None:
        self._start("emergency stop", self._emergency)

    def under_way(self) -> list[str]:
        """The names of those that have not come to their end."""
        self._threads = [(name, thread) for name, thread in self._threads if not thread.wait(0)]
        return [name for name, _ in self._threads]

    def wait(self) -> None:
        for _, thread in self._threads:
            thread.wait()

    def _start(self, name: str, work: Callable[[], str]) -> None:
        def act() -> None:
            try:
                self.told(f"{name}: {work()}")
            except AgentboxError as error:
                self.told(f"{name}: {error}")
            except Exception as error:  # a failure here must be seen, and must not take the screen with it
                self.told(f"{name}: failed: {type(error).__name__}: {error}")

        self.told(f"{name} …")
        try:
            self._threads.append((name, Background(act)))
        except RuntimeError as error:
            self.told(f"{name}: failed: {error}")

    def _pause(self, run_id: str, task_id: str | None) -> str:
        pause.hold(self.home, run_id, task_id, REASON)
        no_gate = [one.task_id for one in pause.look(self.home, run_id, task_id) if one.state == "no gate"]
        if not no_gate:
            return "ordered; each worker holds at its next boundary"
        return f"ordered; no gate seen, may not hold: {', '.join(no_gate)}"

    def _resume(self, run_id: str, task_id: str | None) -> str:
        before = pause.standing(self.home, run_id, task_id)
        order = pause.release(self.home, run_id, task_id)
        return "was not paused" if order.generation == before.generation else f"order {order.word}"

    def _stop(self, run_id: str, task_id: str | None, act: Act, patience: float) -> str:
        (stop,) = carry_out(self.home, [target_of(self.home, run_id, task_id)], REASON, act, patience)
        return _told(stop)

    def _emergency(self) -> str:
        done = emergency_stop(self.home, REASON, f"uid {os.getuid()} pid {os.getpid()}", make_file=True)
        words = {"empty": "nothing is alive", "alive": "THERE ARE SURVIVORS"}
        more = [*done.unreachable, done.problem, "" if done.stands else "NEW RUNS ARE NOT REFUSED"]
        return "; ".join(filter(None, [words.get(done.proof, "COULD NOT PROVE that nothing is alive"), *more]))


def _told(stop: Stop) -> str:
    said = {
        "empty": f"proven empty, {ended_text(stop)}",
        "alive": number_of(len(stop.survivors), "survivor").upper(),
    }.get(stop.proof, "COULD NOT PROVE it empty")
    return "; ".join([said, *stop.warnings[:1]])
