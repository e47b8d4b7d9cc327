"""The rungs of an abort: order, grace, SIGTERM, kill. Each ends as soon as the run is empty."""

from __future__ import annotations

import signal
import time

from sandbox.boxes.base import Proof
from sandbox.boxes.where import inside
from sandbox.control.clock import now
from sandbox.control.stop import FREEZE_SECONDS, Found, Rung, Stop, kill, photograph, worst
from sandbox.control.targets import Target

GRACE = 30.0
TERM = 10.0


def abort(target: Target, stop: Stop, grace: float = GRACE, term: float = TERM) -> Stop:
    """After the order: wait `grace` seconds, SIGTERM all, wait `term` seconds, kill. Fills `stop`."""
    stop.rungs.append(Rung("grace", now()))
    photograph(target.boxes(), stop)
    if grace > 0 and wait_empty(target, grace) == "empty":
        stop.gone_in_grace = len(stop.processes)
        return kill(target, stop)
    found = target.boxes()
    stop.rungs.append(Rung("term", now()))
    photograph(found, stop)
    living = stop.rungs[-1].processes
    stop.gone_in_grace = 0 if living is None else max(0, len(stop.processes) - living)
    terminate(found)
    wait_empty(target, term)
    return kill(target, stop)


def terminate(found: Found) -> None:
    """SIGTERM to every process, so that all have it pending before any of them runs on.

    Frozen first and thawed after; what was stopped by SIGSTOP is continued, or it could never act on it
    (signal(7)), but not what SIGTERM could not be sent to. A box with the caller in it is not frozen: that would
    freeze the abort.
    """
    for backend, box in found:
        own = box.cgroup is not None and inside(box.cgroup)
        if not own:
            backend.freeze(box, time.monotonic() + FREEZE_SECONDS)
        refused = backend.signal(box, signal.SIGTERM)
        backend.signal(box, signal.SIGCONT, skip=frozenset(refused))
        backend.thaw(box)


def wait_empty(target: Target, seconds: float) -> Proof:
    """Wait until every box of the target is empty, at most `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = target.boxes()
        proofs = [backend.wait_empty(box, deadline) for backend, box in found]
        if time.monotonic() >= deadline or worst(proofs) == "empty":
            return worst(proofs)
