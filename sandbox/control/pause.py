"""Pause and resume: hold a run, or one task, at the next boundary, and tell when it is quiet.

No SIGSTOP and no freeze: a worker holds itself at its gate (harness.gate). What a worker says of itself is shown
with its time; a task that never passed a gate is reported as such, never as quiet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.boxes.where import own_box
from sandbox.control import orders
from sandbox.control.request import ended_unrecorded
from sandbox.control.status import Status, load, over_by_record, status
from sandbox.errors import USAGE, AgentboxError, Refused
from sandbox.harness.beat import Mark, marks, under_way
from sandbox.manifest.home import Home
from sandbox.manifest.record import whoami
from sandbox.manifest.writer import Writer

LOOK_EVERY = 0.05


@dataclass
class TaskQuiet:
    """`state`: quiet, call (in a tool call), idle (between calls), no gate, or ended. `since`: seconds since 1970.

    `dirty`: the task's worktree holds what is not committed; None: could not tell, or `worktree` is None.
    """

    task_id: str
    state: str
    call: str | None = None
    since: float | None = None
    worktree: str | None = None
    dirty: bool | None = None

    @property
    def quiet(self) -> bool:
        return self.state in ("quiet", "idle", "ended")


def hold(home: Home, run_id: str, task_id: str | None = None, reason: str = "") -> orders.Order:
    """Order PAUSE. Pausing what is paused changes nothing. Raises Refused under STOP, AgentboxError."""
    return _order(home, run_id, task_id, "PAUSE", reason or "paused")


def release(home: Home, run_id: str, task_id: str | None = None) -> orders.Order:
    """Order RUN again. Refused from inside of any box, under STOP, and while the emergency stop is on."""
    if own_box():
        raise Refused("resume is not for a process inside of a box", fix="ask from outside")
    if why := orders.emergency_stop(home.emergency_stop):
        raise Refused(why, fix="lift it with `agentbox estop --lift` from outside of any box")
    if why := _over(home, run_id, task_id):
        what = f"task {task_id} of run {run_id}" if task_id else f"run {run_id}"
        raise Refused(
            f"{what} {why}, whatever its control file says", fix=f"start a new {'task' if task_id else 'run'}"
        )
    return _order(home, run_id, task_id, "RUN", "resumed")


def _over(home: Home, run_id: str, task_id: str | None) -> str:
    """Why the run or task can't go on, by its record; "" where that can't be read, or where its order says STOP."""
    run = home.run_dir(run_id)
    if orders.read_order(run.control if task_id is None else run.task_order(task_id)).word == "STOP":
        return ""
    try:
        return over_by_record(load(home, run_id)[0], task_id)
    except AgentboxError:
        return ""


def _order(home: Home, run_id: str, task_id: str | None, word: str, reason: str) -> orders.Order:
    run = home.run_dir(run_id)
    path = run.control if task_id is None else run.task_order(task_id)
    if not os.path.lexists(path):
        what = f"task {task_id} in run {run_id}" if task_id else f"order of run {run_id}"
        raise AgentboxError(f"no {what}", fix=f"see `agentbox inspect {run_id}`", code=USAGE)
    standing = orders.read_order(path)
    if standing.word == word:
        return standing
    try:
        order = orders.loosen(path, word, reason=reason, by=f"uid {os.getuid()} pid {os.getpid()}")
    except OSError as error:
        raise AgentboxError(f"{path} cannot be written: {error.strerror}", fix="see `agentbox doctor`") from None
    writer = Writer(run.manifest, run_id, by=whoami(inside=own_box() is not None))
    writer.append(
        "control.set", task_id=task_id, sync=True, order=word, generation=order.generation, reason=order.reason
    )
    return order


def standing(home: Home, run_id: str, task_id: str | None = None) -> orders.Order:
    """The order in force of a run, or a task's own."""
    run = home.run_dir(run_id)
    return orders.read_order(run.control if task_id is None else run.task_order(task_id))


def wait_quiet(
    home: Home,
    run_id: str,
    task_id: str | None,
    seconds: float,
    waiting: Callable[[list[str]], None] = lambda tasks: None,
) -> tuple[list[TaskQuiet], float]:
    """Look until every task is quiet, at most `seconds`. Returns the last look and the seconds that it took.

    One that has passed no gate so far may still come to its first, so it is waited for too; `waiting` is called once,
    with those, when there is nobody else to wait for.
    """
    start, told = time.monotonic(), False
    while True:
        found = look(home, run_id, task_id)
        spent = time.monotonic() - start
        left = [task for task in found if not task.quiet]
        if spent >= seconds or not left:
            return found, spent
        if not told and all(task.state == "no gate" for task in left):
            told = True
            waiting([task.task_id for task in left])
        time.sleep(LOOK_EVERY)


def all_quiet(home: Home, one: Status) -> bool:
    """Is every live task of a run quiet? Cheaper than `look` for a status that is known."""
    run = home.run_dir(one.run_id)
    return all(
        of_task(one, name, marks(run.beat(name))).quiet or ended_unrecorded(home, one.run_id, task)
        for name, task in one.run.tasks.items()
    )


def shown_state(home: Home, one: Status) -> str:
    """The state as people read it: `pausing` for an ordered pause under which not every task is known to be quiet."""
    return "pausing" if one.state == "paused" and not all_quiet(home, one) else one.state


def look(home: Home, run_id: str, task_id: str | None = None) -> list[TaskQuiet]:
    """What each live task says of itself now."""
    one = status(home, run_id)
    run = home.run_dir(run_id)
    wanted = [task for task in one.run.tasks if task_id in (None, task)]
    return [
        TaskQuiet(task, "ended")
        if ended_unrecorded(home, run_id, one.run.tasks[task])
        else of_task(one, task, marks(run.beat(task)))
        for task in wanted
    ]


def look_at_worktrees(home: Home, run_id: str, tasks: list[TaskQuiet]) -> None:
    """Fill `worktree` and `dirty` of each; a worktree whose directory is gone is none."""
    from sandbox.worktree.state import is_dirty

    known = load(home, run_id)[0].tasks
    for task in tasks:
        path = known[task.task_id].worktree if task.task_id in known else None
        if path and os.path.isdir(path):
            task.worktree, task.dirty = path, is_dirty(path)


def of_task(one: Status, task_id: str, seen: list[Mark]) -> TaskQuiet:
    """What one task says of itself by its marks, `seen`."""
    if one.run.tasks[task_id].state in ("exited", "failed") or not one.live:
        return TaskQuiet(task_id, "ended")
    if not seen:
        return TaskQuiet(task_id, "no gate")
    open_calls = under_way(seen)
    held: dict[str, Mark] = {}
    for mark in seen:
        held.pop(mark.name, None)
        if mark.word == "quiet":
            held[mark.name] = mark
    if open_calls:
        first = min(open_calls.values(), key=lambda mark: mark.at)
        return TaskQuiet(task_id, "call", first.name, first.at)
    if held:
        return TaskQuiet(task_id, "quiet", None, max(mark.at for mark in held.values()))
    return TaskQuiet(task_id, "idle", None, seen[-1].at)


def as_dict(task: TaskQuiet) -> dict[str, Any]:
    return {**vars(task), "quiet": task.quiet}
