"""Runs inside of a run that was stopped ended with it: their orders and their records say so as well.

Else their orders would let something start again, and their records would end in the middle.
"""

from __future__ import annotations

from itertools import pairwise

from sandbox.boxes.where import runs_around
from sandbox.control import orders
from sandbox.control.status import load
from sandbox.control.stop import Stop
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home


def stops_inside(home: Home, stop: Stop) -> list[Stop]:
    """Orders the stop of each such run, and gives the stops to be recorded, from where the kernel had the processes.

    Only runs of this home, whose record names the same run around it, and which nobody else has ordered to stop.
    """
    outer_of: dict[str, str] = {}
    members: dict[str, list[int]] = {}
    for place, member in enumerate(stop.processes):
        around = runs_around(member.cgroup) if member.cgroup else ()
        inside = around[around.index(stop.run_id) :] if stop.run_id in around else ()
        for outer, inner in pairwise(inside):
            outer_of.setdefault(inner, outer)
            members.setdefault(inner, []).append(place)
    return [
        _ended_with(home, stop, inner, outer, members[inner])
        for inner, outer in outer_of.items()
        if _is_open(home, inner, outer)
    ]


def _is_open(home: Home, inner: str, outer: str) -> bool:
    try:
        run, _ = load(home, inner)
    except AgentboxError:
        return False
    control = home.run_dir(inner).control
    return run.parent_run == outer and run.ended is None and orders.read_order(control).word != "STOP"


def _ended_with(home: Home, stop: Stop, inner: str, outer: str, members: list[int]) -> Stop:
    found = Stop(inner, None, f"killed by outer run {outer}", stop.by, proof=stop.proof)
    found.ordered_at, found.frozen_at, found.empty_at = stop.ordered_at, stop.frozen_at, stop.empty_at
    found.processes = [stop.processes[place] for place in members]
    _, problem = orders.order_stop(home.run_dir(inner).control, reason=found.reason, by=found.by)
    found.warnings += [problem] if problem else []
    return found
