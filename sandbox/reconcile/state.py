"""What state a run is in for the reconciler, and whether that is a finding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sandbox.control.ladder import TERM
from sandbox.control.status import ENDED, Status, judge
from sandbox.control.stop import KILL_SECONDS
from sandbox.manifest.home import Home
from sandbox.reconcile.boxes import SeenBox
from sandbox.reconcile.findings import Remedy, Severity
from sandbox.reconcile.records import Recorded
from sandbox.reconcile.survey import Survey, uses_engine

START_SECONDS = 60.0
"""How long a box without a record, or an intent without a launcher to be found, may be somebody's start."""
STOP_SECONDS = 60.0
"""How long a stop may go on whose asker can't be told."""
MARGIN = 5.0


@dataclass
class Verdict:
    """`state`: as `ps` tells it. `kind`: of the finding about the whole run, or "". `live`: it may go on."""

    state: str
    live: bool = False
    kind: str = ""
    why: str = ""
    since: str | None = None
    severity: Severity | None = None
    remedy: Remedy | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


def alive(boxes: list[SeenBox]) -> bool:
    """Does the kernel (or an engine) say that something lives?"""
    return any(box.populated for box in boxes)


def closed(verdict: Verdict) -> bool:
    """Is the run proven over, with nobody who would still clean up after it?"""
    return not verdict.live and verdict.state in (*ENDED, "gone")


def state_of(seen: Survey, run: Recorded, boxes: list[SeenBox]) -> Verdict:
    """Of one run; `run` with `missing` where there is no record."""
    if run.missing or run.unreadable:
        return _unrecorded(seen, run, boxes)
    if run.run.host not in (None, seen.host):
        return Verdict("unknown", live=True, why=f"it belongs to host {run.run.host}")
    if alive(boxes):
        return _alive(seen, run, boxes)
    unknown = not seen.boxes_seen or any(box.populated is None for box in boxes)
    if unknown or (uses_engine(run) and seen.engine and not run.ended):
        return Verdict("unknown", live=True, why="could not ask whether it is alive")
    return _empty(seen, run)


def _unrecorded(seen: Survey, run: Recorded, boxes: list[SeenBox]) -> Verdict:
    what = f"the record cannot be read ({run.unreadable})" if run.unreadable else "no record of this run"
    if not alive(boxes):
        if not boxes or any(box.populated is None for box in boxes):
            return Verdict("unknown", live=bool(boxes))
        # Nobody starts here any more: a launcher without a record has no run directory, and gives up.
        return Verdict("gone", why=what)
    if not all(box.ours for box in boxes):
        why = "processes in a cgroup of ours that nobody's mark and no record is on"
        return Verdict("unknown", live=True, kind="unknown_box", why=why, severity="info")
    # A record that can't be read tells nothing, so nothing is unwanted.
    unwanted = (
        not run.unreadable and seen.owners.get(run.run_id) is False and seen.ages.get(run.run_id, 0.0) > START_SECONDS
    )
    return Verdict(
        "unknown",
        live=not unwanted,
        kind="unknown_box",
        why=f"a live box of this state directory, and {what}",
        remedy=Remedy("stop") if unwanted else None,
        evidence={"owner_alive": seen.owners.get(run.run_id)},
    )


def _alive(seen: Survey, run: Recorded, boxes: list[SeenBox]) -> Verdict:
    main = run.run.tasks.get(run.run.main_task)
    elsewhere = run.run_id in seen.pids_elsewhere
    launcher = None if elsewhere and run.launcher is False else run.launcher
    if _starting(seen, run):
        return Verdict("starting", live=True)
    if stopped := _stopped(seen, run, launcher):
        return stopped
    if (main and main.state in ("exited", "failed")) or run.ended:
        return _left_over(run, main.ended_at if main else None, launcher)
    if overdue := _overdue(seen, run):
        return overdue
    if not elsewhere and _main_is_gone(run, boxes):
        return _left_over(run, None, launcher)
    if launcher is False:
        gone = run.main_alive is False
        what = "its main command is gone and no exit was recorded" if gone else "nobody waits for it any more"
        return Verdict("running", kind="orphan", why=f"its launcher is gone; {what}", remedy=Remedy("stop"))
    paused = run.order is not None and run.order.word == "PAUSE"
    return Verdict("paused" if paused else "running", live=True)


def _main_is_gone(run: Recorded, boxes: list[SeenBox]) -> bool:
    """Did main end with nobody there to record it, while other tasks go on?"""
    main = run.run.tasks.get(run.run.main_task)
    if main is None or main.state != "started" or run.launchers.get(main.task_id) is not False:
        return False
    return run.main_alive is False and not any(main.task_id in box.live_tasks for box in boxes)


def _starting(seen: Survey, run: Recorded) -> bool:
    """Is a task between its intent and its start, with a launcher that may go on with it?"""
    for task in run.run.tasks.values():
        if task.state != "intent":
            continue
        launcher = run.launchers.get(task.task_id)
        young = task.boot_id == seen.boot and seen.now - run.monos.get(task.task_id, 0.0) < START_SECONDS
        if launcher is True or (launcher is None and young):
            return True
    return False


def _stopped(seen: Survey, run: Recorded, launcher: bool | None) -> Verdict | None:
    """A run that is alive under a stop order that nobody carries out any more."""
    order = run.order
    if order is None or order.word != "STOP":
        if not seen.emergency:
            return None
        why = f"it is alive, and {seen.emergency}"
        return Verdict("stopping", kind="stopped_alive", why=why, remedy=Remedy("stop"))
    asker = seen.stoppers.get(run.run_id)
    if asker is None and order.trusted and _seconds_since(seen, order.at) < STOP_SECONDS:
        asker = True
    if asker:
        return Verdict("stopping", live=True)
    main = run.run.tasks.get(run.run.main_task)
    if order.trusted and (main and main.state == "exited") and order.by.startswith("launcher "):
        # The launcher's own order after its command's end: what is left then is a leftover, not a failed stop.
        return None
    why = f"it was stopped ({order.reason or 'no reason'}) and is alive"
    evidence = {"ordered_at": order.at, "ordered_by": order.by, "order_trusted": order.trusted}
    return Verdict(
        "kill_pending", kind="stopped_alive", why=why, since=order.at or None, remedy=Remedy("stop"), evidence=evidence
    )


def _left_over(run: Recorded, ended_at: str | None, launcher: bool | None) -> Verdict:
    if launcher and run.launchers.get(run.run.main_task):
        return Verdict("stopping", live=True)
    kept = run.run.on_exit == "leave"
    why = "its main command has ended, and others live"
    since = ended_at or (run.run.ended or {}).get("ts")
    if kept:
        # What a person asked to be kept is shown, not ended.
        return Verdict("leftovers", False, "leftovers", f"{why}, as --on-exit leave asks for", since, "info")
    return Verdict("leftovers", False, "leftovers", why, since, None, Remedy("stop"))


def _overdue(seen: Survey, run: Recorded) -> Verdict | None:
    """Past its time-out, with time for the launcher to end it by the ladder. By the clock that nobody sets."""
    main = run.run.tasks.get(run.run.main_task)
    began = run.monos.get(run.run.main_task)
    timeout = run.run.timeout
    if not (timeout and main and began) or main.boot_id != seen.boot:
        return None
    if run.order is not None and run.order.word == "PAUSE":
        return None
    over = seen.now - began - timeout
    if over < TERM + KILL_SECONDS + MARGIN:
        return None
    why = f"its time-out of {timeout:g} s was over {over:.0f} s ago"
    return Verdict("running", kind="expired", why=why, since=main.started_at, remedy=Remedy("stop"))


def _empty(seen: Survey, run: Recorded) -> Verdict:
    if run.ended:
        outcome = (run.run.ended or {}).get("outcome")
        states = {"killed": "stopped", "stopped": "stopped", "not started": "not started", "lost": "lost"}
        # A launcher that still lives removes its boxes itself.
        return Verdict(states.get(str(outcome), "exited"), live=run.launcher is True)
    if run.order is None or (run.run.created_at is None and not run.run.tasks):
        return Verdict("unknown", live=True)
    if _starting(seen, run):
        return Verdict("starting", live=True)
    status = Status(run.run_id, run.run, run.order, "empty", launcher_alive=run.launcher)
    state, why = judge(Home(seen.home), status)
    if state != "lost":
        return Verdict(state, live=state not in ENDED or run.launcher is True, why=why)
    if run.launcher is None and not _other_boot(seen, run):
        return Verdict("unknown", live=True, why="its launcher could not be looked for")
    severity: Severity | None = "info" if _other_boot(seen, run) else None
    return Verdict("lost", False, "lost", why, None, severity, Remedy("close"))


def _other_boot(seen: Survey, run: Recorded) -> bool:
    main = run.run.tasks.get(run.run.main_task)
    return bool(main and main.boot_id and main.boot_id != seen.boot)


def _seconds_since(seen: Survey, at: str) -> float:
    from sandbox.reconcile.doorways import moment

    began = moment(at)
    return seen.wall - began if began is not None else STOP_SECONDS
