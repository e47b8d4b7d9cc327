"""Stopping a run or a task: order, freeze, photograph, kill, prove, record.

The order comes first, so that a start which is under way sees it; the kill comes before its record, so that
no disk, lock or broken file can delay it. Success is `empty`, said by the kernel, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox.boxes.base import Backend, Box, Proof
from sandbox.boxes.where import inside
from sandbox.control import orders
from sandbox.control.clock import now
from sandbox.control.targets import Target
from sandbox.kernel.mounts import cgroup_of
from sandbox.kernel.procfs import Member, wchan
from sandbox.manifest.redact import described

KILL_SECONDS = 10.0
FREEZE_SECONDS = 1.0
SURVIVOR_LOOKS = 5
PHOTOGRAPH_SECONDS = 1.0

Found = list[tuple[Backend, Box]]


@dataclass
class Rung:
    """A step of the ladder: its name, when it began (wall clock, RFC 3339), and how many lived then."""

    rung: str
    at: str
    processes: int | None = None


@dataclass
class Stop:
    """What a stop found and did. Times are wall clock, RFC 3339; `warnings` are lines for people."""

    run_id: str
    task_id: str | None
    reason: str
    by: str
    proof: Proof = "unknown"
    ordered_at: str = ""
    frozen_at: str | None = None
    empty_at: str | None = None
    processes: list[Member] = field(default_factory=list)
    survivors: list[Member] = field(default_factory=list)
    escapees: list[Member] = field(default_factory=list)
    rungs: list[Rung] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    already: bool = False
    recorded: bool = True
    unlisted: bool = False
    """Something lived whose processes could not be listed: `processes` is not all of it."""
    from_inside: bool = False
    gone_in_grace: int = 0
    """How many of `processes` were gone when the grace of an abort was over; 0 also where that is not known."""

    def as_receipt(self) -> dict[str, Any]:
        """As `--json` gives it."""
        return {"run_id": self.run_id, "task_id": self.task_id, **self.as_record()}

    def as_record(self) -> dict[str, Any]:
        """The receipt's fields, as the manifest keeps them."""
        return {
            "reason": self.reason,
            "asked_by": self.by,
            "proof": self.proof,
            "ordered_at": self.ordered_at,
            "frozen_at": self.frozen_at,
            "empty_at": self.empty_at,
            "processes": [described(m.as_dict()) for m in self.processes],
            "survivors": [described(m.as_dict()) for m in self.survivors],
            "escapees": [described(m.as_dict()) for m in self.escapees],
            "rungs": [vars(r) for r in self.rungs],
            "warnings": self.warnings,
            "from_inside": self.from_inside,
            "gone_in_grace": self.gone_in_grace,
        }


def begin(target: Target, reason: str, by: str, patience: float = 0.0) -> Stop:
    """Write the STOP order of a run or task; the first step of `kill` and `abort`. `patience`: see Order."""
    stop = Stop(target.run_id, target.task_id, reason, by)
    before = orders.read_order(target.order_path)
    stop.already = before.word == "STOP" and before.trusted
    order, problem = orders.order_stop(target.order_path, reason=reason, by=by, patience=patience)
    stop.ordered_at = order.at or now()
    stop.rungs.append(Rung("order", now()))
    if problem:
        stop.recorded = False
        stop.warnings.append(problem)
    return stop


def kill(target: Target, stop: Stop, seconds: float = KILL_SECONDS) -> Stop:
    """The last rung: freeze, photograph, kill and prove, again until a fresh look finds nothing.

    Fills `stop` and returns it; its proof stays open until the end, for others may read it meanwhile. Needs no fork,
    no disk and no readable manifest.
    """
    deadline = time.monotonic() + seconds
    stop.proof = "unknown"
    stop.rungs.append(Rung("kill", now()))
    while True:
        found = freeze_as_found(target)
        stop.from_inside = any(box.cgroup and inside(box.cgroup) for _, box in found)
        if stop.from_inside:
            return _kill_from_inside(target, stop, found)
        _freeze_and_photograph(found, stop)
        killed = _kill_all(found, deadline)
        settled = orders.stands_for_good(target.order_path, reason=stop.reason, by=stop.by)
        fresh = target.boxes()
        proof = worst([killed, *(backend.populated(box) for backend, box in fresh)])
        # An empty box that the kill has not met may be a start's: a container that is made, and about to run.
        met = _names(fresh) <= _names(found)
        if (proof == "empty" and settled and met) or time.monotonic() >= deadline:
            break
        if proof == "unknown":
            time.sleep(0.1)  # an engine that can't be asked is asked again, but not in a storm
    stop.warnings += [*target.unreachable, *(line for one in target.backends for line in getattr(one, "notes", ()))]
    if proof == "empty" and (target.unreachable or not met):
        proof = "unknown"
    if proof == "empty":
        stop.empty_at = now()
    else:
        stop.survivors = _survivors(target.boxes())
    stop.proof = proof
    return stop


def _names(found: Found) -> set[tuple[str, str, str | None]]:
    return {(backend.name, box.id, box.cgroup) for backend, box in found}


def look(target: Target) -> Stop:
    """What a stop would meet now: its processes, and `proof` as it stands. Changes nothing."""
    stop = Stop(target.run_id, target.task_id, "", "")
    target.boxes()  # the second look asks the engine too, where the record names it
    found = target.boxes()
    stop.rungs.append(Rung("look", now()))
    photograph(found, stop)
    told = not target.unreachable and stop.rungs[-1].processes is not None
    stop.proof = worst([backend.populated(box) for backend, box in found]) if told else "unknown"
    stop.warnings += target.unreachable
    return stop


def freeze_as_found(target: Target) -> Found:
    """Ask for the freeze of what was known before the order, then look afresh and freeze what else is found.

    At once, one by one: the kernel works on one while the next is found. Not for a box with the caller in it, who
    would be frozen, nor for one whose engine would have to be waited for.
    """
    own = cgroup_of()
    asked: set[str] = set()

    def freeze(backend: Backend, box: Box) -> None:
        if box.cgroup and box.cgroup not in asked and not inside(box.cgroup, own):
            asked.add(box.cgroup)
            backend.freeze(box, deadline=0.0)

    for backend, box in target.located():
        freeze(backend, box)
    found = []
    for backend, box in target.each():
        found.append((backend, box))
        freeze(backend, box)
    return found


def _freeze_and_photograph(found: Found, stop: Stop) -> None:
    """From `frozen_at` on no instruction of the run executes: that is the stop time."""
    living = [(backend, box) for backend, box in found if backend.populated(box) != "empty"]
    deadline = time.monotonic() + FREEZE_SECONDS
    frozen = [backend.freeze(box, deadline) for backend, box in living]
    if living and all(frozen):
        stop.frozen_at = stop.frozen_at or now()
    photograph(living, stop)


def photograph(found: Found, stop: Stop) -> None:
    """Add who lives now to the processes that the stop has met, and their number to its last rung."""
    known = {(m.pid, m.start_ticks) for m in stop.processes}
    seen = [backend.members(box, PHOTOGRAPH_SECONDS) for backend, box in found]
    # Once each: a container's cgroup is seen as a cgroup and through its engine.
    now_there = {(m.pid, m.start_ticks): m for members in seen for m in members or []}
    stop.processes += [member for key, member in now_there.items() if key not in known]
    stop.rungs[-1].processes = None if None in seen else len(now_there)
    if None in seen and not stop.unlisted:
        stop.unlisted = True
        stop.warnings.append("what lived in it could not be listed")


def _kill_all(found: Found, deadline: float) -> Proof:
    proofs: list[Proof] = [backend.kill(box, deadline) for backend, box in found]
    for backend, box in found:
        # The freeze flag outlives the kill, and would hold whatever is put into the group next.
        backend.thaw(box)
    return worst(proofs)


def _kill_from_inside(target: Target, stop: Stop, found: Found) -> Stop:
    """The caller is a process of the run: it can't freeze itself and go on, nor see itself gone.

    The photograph and the receipt are written first, with the proof left open; the launcher, which lives
    outside, completes it. The kill then takes the caller with it.
    """
    for backend, box in found:
        stop.processes += backend.members(box, PHOTOGRAPH_SECONDS) or []
    stop.warnings.append("asked from inside of the run: the proof is the launcher's to give")
    target.record_before_own_end(stop)
    own = [(b, box) for b, box in found if box.cgroup and inside(box.cgroup)]
    others = [pair for pair in found if pair not in own]
    _kill_all(others + own, time.monotonic() + KILL_SECONDS)
    return stop


def _survivors(found: Found) -> list[Member]:
    """Who is left, named with the kernel function that holds it where that can be told.

    A SIGKILL wakes what it can't end for a moment, so a look that finds one awake is not the last.
    """
    for _ in range(SURVIVOR_LOOKS):
        left = _named_survivors(found)
        if all(member.state and member.state[0] == "D" for member in left):
            break
        time.sleep(0.02)
    return left


def _named_survivors(found: Found) -> list[Member]:
    left = []
    for backend, box in found:
        for member in backend.members(box, PHOTOGRAPH_SECONDS) or []:
            where = wchan(member.pid) if member.state == "D" else ""
            state = f"{member.state} ({where})" if where else member.state
            left.append(Member(**{**member.as_dict(), "state": state}))
    return left


def worst(proofs: Sequence[Proof]) -> Proof:
    """The answer for all of them together: one that lives outweighs one that could not be asked."""
    return "alive" if "alive" in proofs else "unknown" if "unknown" in proofs else "empty"
