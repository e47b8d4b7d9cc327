"""What `reconcile --kill` does: end what two looks prove to be ours and unwanted, and nothing else.

A run or task is ended by the kill path, whole and with a receipt; single processes by pidfds on the very processes
that were seen. An empty cgroup is removed, and a lost run gets its end recorded.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.boxes.base import Unavailable
from sandbox.boxes.registry import local_backends
from sandbox.control.request import carry_out, target_of
from sandbox.control.stop import kill
from sandbox.errors import AgentboxError, number_of
from sandbox.kernel.identity import Identity
from sandbox.manifest.home import Home
from sandbox.manifest.writer import Writer
from sandbox.reconcile.findings import Finding
from sandbox.reconcile.look import Look, look, recheck
from sandbox.reconcile.records import read_run

TERM_SECONDS = 2.0
KILL_SECONDS = 5.0
LAUNCHER_SECONDS = 5.0
ROUNDS = 3
"""What is ended may leave an empty cgroup, and that is a finding of its own."""


@dataclass
class Done:
    """What was done about a finding. `ok`: it is ended, proven; `what`: a line for people."""

    finding: Finding
    ok: bool
    what: str

    def as_dict(self) -> dict[str, Any]:
        one = self.finding
        return {"kind": one.kind, "run_id": one.run_id, "task_id": one.task_id, "ok": self.ok, "what": self.what}


def end_findings(home: Home, seen: Look, only: str | None = None) -> tuple[list[Done], Look]:
    """Act on what two whole looks find, and once more on what that left; what was done, and the last look.

    Raises nothing.
    """
    done: list[Done] = []
    for _ in range(ROUNDS):
        tried = {one.finding.identity for one in done}
        open_ones = {one.identity for one in seen.findings if one.remedy} - tried
        if not open_ones:
            break
        second = look(home, only)
        fresh = _one_round(home, open_ones, second)
        done += fresh
        seen = look(home, only) if fresh else second
    return done, seen


def _one_round(home: Home, before: set[tuple[Any, ...]], second: Look) -> list[Done]:
    """Act on what the look before and the second have in common."""
    twice = [one for one in second.findings if one.remedy and one.identity in before]
    done: list[Done] = []
    for one in sorted(twice, key=_order):
        if any(one.run_id == other.finding.run_id and _covers(other, one) for other in done):
            done.append(Done(one, True, "ended with its run"))
            _record(home, done[-1])
            continue
        # The last glance, right before: whoever started or ended something meanwhile is respected.
        again = [found for found in recheck(home, second.survey, [one]) if found.remedy]
        if again:
            done.append(_act(home, again[0]))
            _record(home, done[-1])
    return done


def _order(one: Finding) -> tuple[int, str]:
    """Whole runs first, then their tasks, single processes, and what is to be tidied."""
    how = one.remedy.how if one.remedy else ""
    rank = ("stop", "processes", "close", "remove").index(how) * 2 + (one.task_id is not None and how == "stop")
    return rank, one.run_id or ""


def _covers(done: Done, one: Finding) -> bool:
    """Has what was done for another finding ended this one, too?"""
    how, its = (found.remedy.how if found.remedy else "" for found in (done.finding, one))
    whole = (how == "stop" and done.finding.kind != "orphan") or (how == "stop" and done.finding.task_id is None)
    return done.ok and whole and its == "stop"


def _act(home: Home, one: Finding) -> Done:
    assert one.remedy is not None
    try:
        if one.remedy.how == "stop":
            return _stop(home, one)
        if one.remedy.how == "processes":
            return _end_processes(one, one.remedy.identities)
        if one.remedy.how == "remove":
            return _remove(home, one)
        return _close(home, one)
    except (AgentboxError, OSError) as error:
        return Done(one, False, f"could not be ended: {error}")


def _stop(home: Home, one: Finding) -> Done:
    assert one.run_id is not None
    # A ghost is ended with the whole of its run, which is over.
    task = one.task_id if one.kind == "orphan" else None
    target = target_of(home, one.run_id, task)
    (stop,) = carry_out(home, [target], f"reconcile: {one.kind}: {one.what}", kill)
    _wait_for_launchers(home, one.run_id)
    what = f"{stop.proof}, {number_of(len(stop.processes), 'process')} ended"
    left = "".join(f"; pid {member.pid} {member.state}" for member in stop.survivors)
    warned = "".join(f"; {line}" for line in stop.warnings)
    return Done(one, stop.proof == "empty", what + left + warned)


def _wait_for_launchers(home: Home, run_id: str) -> None:
    """Launchers that saw their command end have its end to record and its box to remove: let them, for a while."""
    deadline = time.monotonic() + LAUNCHER_SECONDS
    while read_run(home, run_id, whole=True).launcher is True and time.monotonic() < deadline:
        time.sleep(0.02)


def _end_processes(one: Finding, identities: Sequence[Identity]) -> Done:
    """SIGTERM, a while, SIGKILL, through pidfds that were checked to hold the very processes that were seen."""
    fds = {identity.pid: fd for identity in identities if (fd := identity.pidfd()) is not None}
    try:
        for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            left = _signal(fds, number, time.monotonic() + seconds)
            if not left:
                return Done(one, True, f"{number_of(len(fds), 'process')} ended")
        return Done(one, False, f"still alive: {', '.join(map(str, sorted(left)))}")
    finally:
        for fd in fds.values():
            os.close(fd)


def _signal(fds: dict[int, int], number: int, deadline: float) -> set[int]:
    """Signal all that live, wait for their ends, and give the pids that are left. A pidfd reads as ready at the end."""
    left = {pid for pid, fd in fds.items() if not _ended(fd, 0)}
    for pid in left:
        try:
            signal.pidfd_send_signal(fds[pid], number)
        except OSError:
            continue
    for pid in sorted(left):
        if _ended(fds[pid], max(0.0, deadline - time.monotonic())):
            left = left - {pid}
    return left


def _ended(fd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _remove(home: Home, one: Finding) -> Done:
    assert one.run_id is not None
    gone = True
    for backend in local_backends(home.path):
        try:
            found = backend.parents(one.run_id, one.evidence.get("path"))
        except Unavailable:
            continue
        for box in found:
            gone = backend.destroy(box) and gone
    gone = gone and not os.path.isdir(str(one.evidence.get("path")))
    return Done(one, gone, "removed" if gone else f"{one.evidence.get('path')} could not be removed")


def _close(home: Home, one: Finding) -> Done:
    """Record the end of a lost run, which nobody else will record any more."""
    assert one.run_id is not None
    Writer(home.run_dir(one.run_id).manifest, one.run_id).append("run.ended", sync=True, code=None, outcome="lost")
    return Done(one, True, "its end is recorded")


def _record(home: Home, done: Done) -> None:
    """The finding and what became of it go to the run's record, if there is one."""
    one = done.finding
    if one.run_id is None or not os.path.isdir(home.run_dir(one.run_id).path):
        return
    found = {key: value for key, value in one.as_dict().items() if key not in ("run_id", "task_id")}
    try:
        writer = Writer(home.run_dir(one.run_id).manifest, one.run_id)
        writer.append("finding", task_id=one.task_id, finding=found, ended=done.ok, did=done.what)
    except AgentboxError as error:
        done.what += f"; not recorded: {error}"
