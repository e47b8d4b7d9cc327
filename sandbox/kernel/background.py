"""Work in a thread of its own, for which nobody waits longer than he wants to.

Not threading.Thread: its start() waits for the new thread's first step without a bound, and a thread that finds no
memory at its birth never makes it (CPython, Lib/threading.py). A stop must not hang there.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

BIRTH_SECONDS = 2.0


class Background:
    """`work` in a thread that does not outlive the process. Raises RuntimeError if none can be made or none begins."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._claim = _thread.allocate_lock()
        self._begun, self._over = threading.Event(), threading.Event()
        _thread.start_new_thread(self._run, ())
        # One that begins after all finds the claim taken.
        if not self._begun.wait(BIRTH_SECONDS) and self._claim.acquire(blocking=False):
            raise RuntimeError("a new thread did not begin")

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        self._begun.set()
        try:
            self._work()
        finally:
            self._over.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it is over, after at most `seconds`."""
        return self._over.wait(seconds)


def bounded(work: Callable[[], None], seconds: float) -> bool:
    """Run `work` in a thread for at most `seconds`; False if it was not done by then, failed or could not start."""
    done = []

    def act() -> None:
        try:
            work()
        except Exception:
            return  # what it has found until then counts; a thread's error would go to stderr
        done.append(True)

    try:
        Background(act).wait(seconds)
    except RuntimeError:
        return False
    return bool(done)
