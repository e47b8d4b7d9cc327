"""What a run is now: the fold of its record, checked against the kernel. Nothing is remembered elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandbox.boxes.base import Backend, Box, Proof, Unavailable, Usage
from sandbox.boxes.cgroup import one_walk
from sandbox.boxes.registry import backend, local_backends
from sandbox.control import orders
from sandbox.control.stop import worst
from sandbox.errors import AgentboxError
from sandbox.kernel.identity import Identity, boot_id
from sandbox.manifest.fold import Run, Task, fold
from sandbox.manifest.home import Home
from sandbox.manifest.reader import read

OUTER_MAX = 32
"""Runs in runs that are looked at; a record could name itself as its own outer run."""

ENDED = ("exited", "stopped", "lost", "not started")


@dataclass
class Status:
    """`state` is one of DESIGN's: starting, running, paused, leftovers, stopping, kill_pending, stopped,
    exited, lost, unknown, or `not started`. `why` says more where there is more to say.
    """

    run_id: str
    run: Run
    order: orders.Order
    proof: Proof
    state: str = "unknown"
    why: str = ""
    boxes: list[tuple[Backend, Box]] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    bad_records: int = 0
    launcher_alive: bool | None = None

    @property
    def live(self) -> bool:
        return self.state not in ENDED


def load(home: Home, run_id: str) -> tuple[Run, int]:
    """The fold of a run's record and how many lines made no sense; an empty fold where there is no record."""
    reading = read(home.run_dir(run_id).manifest, run_id)
    run = fold(reading)
    return run, len(reading.bad)


def over_by_record(run: Run, task_id: str | None = None) -> str:
    """Why nothing may start in a run (or go on in a task of it) any more, by its record alone; "" if that says no such
    thing.

    What was kept on purpose after the main command's end (`--on-exit leave`) may go on.
    """
    stops = [r for r in (*run.orders, *run.receipts) if r.get("task_id") in (None, task_id)]
    for record in stops:
        if record.get("event") == "stop.receipt" or record.get("order") == "STOP":
            return f"was stopped ({record.get('reason') or 'no reason'})"
    return "has ended" if run.ended is not None and run.on_exit != "leave" else ""


def backends_of(home: Home, run: Run) -> list[Backend]:
    """The backends to ask for a run: those of this kernel always, an engine where the record names it."""
    found = local_backends(home.path)
    if run.may_use("docker"):
        found.append(backend("docker", home.path))
    return found


def status(home: Home, run_id: str) -> Status:
    """Look at one run. Raises nothing for what it finds; what can't be told is `unknown`.

    That a run ended without a word is said only after a second look: the first may have read the record just
    before its launcher, which is gone by now, wrote the end into it.
    """
    first = _look_once(home, run_id)
    return _look_once(home, run_id) if first.state in ("lost", "not started") else first


def statuses(home: Home, run_ids: Iterable[str]) -> list[Status]:
    """Look at many runs at once."""
    with one_walk():
        return [status(home, run_id) for run_id in run_ids]


def _look_once(home: Home, run_id: str) -> Status:
    try:
        run, bad = load(home, run_id)
    except AgentboxError as error:
        run, bad = Run(), 0
        unreadable = str(error)
    else:
        unreadable = ""
    result = Status(run_id, run, orders.read_order(home.run_dir(run_id).control), "unknown", bad_records=bad)
    unreachable = _look(result, backends_of(home, run))
    result.launcher_alive = _any_launcher(run)
    result.state, result.why = judge(home, result)
    if unreachable and not result.live:
        result.state = "unknown"
    result.why = "; ".join(part for part in (result.why, *unreachable, unreadable) if part)
    return result


def _look(result: Status, backends: Iterable[Backend]) -> list[str]:
    """Fill boxes, proof and usage; returns why a backend could not be asked."""
    proofs: list[Proof] = []
    unreachable = []
    for one in backends:
        try:
            boxes = one.parents(result.run_id)
        except Unavailable as error:
            unreachable.append(f"{one.name}: {error}")
            proofs.append("unknown")
            continue
        for box in boxes:
            result.boxes.append((one, box))
            proofs.append(one.populated(box))
            # A container's cgroup may be the run's own: counted once.
            if box.cgroup is None or box.cgroup not in {b.cgroup for _, b in result.boxes[:-1]}:
                result.usage = _add(result.usage, one.usage(box))
    result.proof = worst(proofs)
    return unreachable


def _add(one: Usage, two: Usage) -> Usage:
    def plus(a: float | None, b: float | None) -> float | None:
        return b if a is None else a if b is None else a + b

    return Usage(*(plus(getattr(one, n), getattr(two, n)) for n in ("pids", "cpu", "memory", "oom_kills")))  # type: ignore[arg-type]


def judge(home: Home, s: Status) -> tuple[str, str]:
    """The state, and what more there is to say, from what was found: the last step of `status`."""
    main = s.run.tasks.get(s.run.main_task)
    if s.proof == "unknown":
        return "unknown", "could not ask whether it is alive"
    if s.proof == "alive":
        return _alive_state(s, main)
    if s.run.created_at is None and not s.run.tasks and not s.run.receipts:
        return "unknown", "there is no readable record"
    return _empty_state(home, s, main)


def _alive_state(s: Status, main: Task | None) -> tuple[str, str]:
    owner = "" if s.launcher_alive is not False else "its launcher is gone"
    if s.order.word == "STOP":
        if not s.order.trusted:
            return "stopping", f"no trustworthy order: {s.order.reason}"
        last = s.run.receipts[-1] if s.run.receipts else {}
        return ("kill_pending" if last.get("proof") == "alive" else "stopping"), owner
    if main and main.state == "exited":
        return "leftovers", f"the main command exited with {main.code}"
    if s.order.word == "PAUSE":
        return "paused", owner
    if main and main.state == "intent":
        return "starting", owner
    return "running", owner


def _empty_state(home: Home, s: Status, main: Task | None) -> tuple[str, str]:
    """Nothing lives. What was it that ended it?"""
    if main and main.state == "failed":
        return "not started", main.why or ""
    if main and main.state == "exited":
        if main.outcome in ("killed", "stopped"):
            return "stopped", _asked_by(s)
        return "exited", f"{main.outcome} {main.code}" if main.outcome != "exited" else f"code {main.code}"
    if s.launcher_alive and _same_boot(main):
        state = "starting" if main is None or main.state == "intent" else "running"
        return (state if s.order.word != "STOP" else "stopping"), "no process of it lives now"
    if _proven_stop(s.run):
        return "stopped", _asked_by(s)
    if main and not _same_boot(main):
        return "lost", "lost at reboot"
    if outer := _stopped_outer(home, s.run):
        return "stopped", f"killed by outer run {outer}"
    if main is None or main.state == "intent":
        return "not started", "its launcher ended before the command was started"
    return "lost", "it ended and no exit was recorded"


def _proven_stop(run: Run) -> bool:
    """Was the run, or its main task, stopped? The stop of another task is not the run's end."""
    return any(r.get("proof") == "empty" and r.get("task_id") in (None, run.main_task) for r in run.receipts)


def _asked_by(s: Status) -> str:
    return f"{s.order.reason}" if s.order.reason else ""


def _stopped_outer(home: Home, run: Run) -> str | None:
    """The run around this one, if that or one around it was stopped: then this one ended with it."""
    inner = run
    for _ in range(OUTER_MAX):
        if not inner.parent_run:
            return None
        try:
            outer, _bad = load(home, inner.parent_run)
        except AgentboxError:
            return None
        if outer.ended is not None or _proven_stop(outer):
            return run.parent_run
        inner = outer
    return None


def _same_boot(main: Task | None) -> bool:
    return main is None or main.boot_id is None or main.boot_id == boot_id()


def _any_launcher(run: Run) -> bool | None:
    """Is a launcher of the run alive? None = could not tell (none recorded, or unreadable)."""
    answers = [launcher_alive(task) for task in run.tasks.values() if task.state in ("intent", "started")]
    return True if True in answers else False if answers and None not in answers else None


def launcher_identity(task: Task) -> Identity | None:
    known = task.launcher
    if known is None or known.start_ticks is None or not task.boot_id:
        return None
    return Identity(task.boot_id, known.pid, known.start_ticks)


def launcher_alive(task: Task) -> bool | None:
    if task.host not in (None, os.uname().nodename):
        return None
    identity = launcher_identity(task)
    return identity.alive() if identity else None
