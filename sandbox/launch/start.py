"""Starting a task so that a stop is never missed: intent, box, child at its barrier, look again, release.

Either this sees the order, or the stop sees the box: the order is looked at after the child is in the box and
before it may exec. Whatever goes wrong, nothing of the task is left and the record says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandbox.boxes.base import Backend, Box, BoxSpec, Command
from sandbox.control import orders
from sandbox.control.clock import now
from sandbox.errors import NOT_EXECUTABLE, NOT_FOUND, AgentboxError, Refused
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.identity import Identity
from sandbox.kernel.spawn import Child, ChildFailed, Step
from sandbox.launch.environment import environment
from sandbox.launch.output import Output
from sandbox.launch.spec import LaunchSpec
from sandbox.manifest.home import Home, RunDir
from sandbox.manifest.writer import Writer

UNDO_SECONDS = 10.0


@dataclass
class Started:
    """A task that runs. `pid` is the launcher's child; `oom_before` counts the run's OOM kills at the start.

    `output`: its log, where it is detached. `given_up`: why limits that were asked for do not hold, a line each.
    """

    spec: LaunchSpec
    home: Home
    run: RunDir
    backend: Backend
    box: Box
    pid: int
    oom_before: int
    output: Output | None = None
    given_up: Sequence[str] = ()


def may_start(home: Home, run: RunDir, task_id: str | None = None) -> int:
    """The generation of the order that allows a start. Raises Refused where a stop or a pause stands.

    Without `task_id` the run's order alone is looked at.
    """
    if why := orders.emergency_stop(home.emergency_stop):
        raise Refused(why, fix="lift it with `agentbox estop --lift` from outside of any box")
    for path in [run.control, *([run.task_order(task_id)] if task_id is not None else [])]:
        order = orders.read_order(path)
        if order.word != "RUN":
            fix = f"agentbox resume {run.run_id}" if order.word == "PAUSE" else "start a new run"
            raise Refused(f"run {run.run_id} is under order {order.word} ({order.reason or 'no reason'})", fix=fix)
    return orders.read_order(run.control).generation


def start(
    spec: LaunchSpec,
    home: Home,
    run: RunDir,
    writer: Writer,
    backend: Backend,
    steps: list[Step],
    before_exec: Step,
) -> Started:
    """Start the task, or raise with nothing left of it: Refused (75) or AgentboxError with the exit code."""
    generation = may_start(home, run, spec.task_id)
    _record_intent(writer, spec, backend)
    box: Box | None = None
    tree_made = False
    try:
        if spec.tree is not None:
            from sandbox.launch import worktree

            steps = [worktree.make(spec, writer, lambda: may_start(home, run, spec.task_id)), *steps]
            tree_made = True
        box, given_up = backend.create(_box_spec(spec, home, run))
        for line in given_up:
            writer.append("note", task_id=spec.task_id, text=f"limit given up: {line}")
        command = Command(list(spec.argv), environment(spec, run), steps=steps, before_exec=before_exec)
        oom_before = _oom_kills(backend, spec.run_id)
        child = backend.start(box, command, lambda: None)
        try:
            if may_start(home, run, spec.task_id) != generation:
                raise Refused(f"the order of run {run.run_id} changed during the start", fix="try again")
            box = _with_inode(box)
            _record_started(writer, spec, box, child)
        except BaseException:
            child.abandon()
            raise
        _release(child, spec.name)
    except BaseException as error:
        undone = _undo(spec, home, run, writer, backend, box, tree_made, error)
        raise undone from None
    return Started(spec, home, run, backend, box, child.pid, oom_before, given_up=given_up)


def _release(child: Child, name: str) -> None:
    """A command that is there and yet not found has no interpreter: the one after `#!`, or its loader (execve(2))."""
    try:
        child.release()
    except ChildFailed as error:
        child.abandon()
        why = os.strerror(error.error) if error.error else str(error)
        if error.error in (2, 20):
            fix = f"see what it needs with head -n 1 or file {name}"
            raise AgentboxError(f"{name} has no interpreter: {why}", fix=fix, code=NOT_FOUND) from None
        raise AgentboxError(f"{name} could not be started: {why}", code=NOT_EXECUTABLE) from None


def _record_intent(writer: Writer, spec: LaunchSpec, backend: Backend) -> None:
    writer.append(
        "task.intent",
        task_id=spec.task_id,
        sync=True,
        argv=spec.shown_argv,
        backend=backend.name,
        launcher=_own_identity(),
        detached=spec.detach,
        cwd=spec.cwd,
        **(spec.tree.as_record() if spec.tree else {}),
    )


def _record_started(writer: Writer, spec: LaunchSpec, box: Box, child: Child) -> None:
    identity = Identity.of(child.pid)
    writer.append(
        "task.started",
        task_id=spec.task_id,
        sync=True,
        pid=child.pid,
        start_ticks=identity.start_ticks if identity else None,
        box=box.as_record(),
        remote_id=None,
        branch=spec.tree.branch if spec.tree else None,
        worktree=spec.tree.path if spec.tree else None,
        started_at=now(),
        harness=spec.harness,
        argv=spec.shown_argv,
        launcher=_own_identity(),
        detached=spec.detach,
        **({"allowance": spec.allowance} if spec.allowance else {}),
    )


def _undo(
    spec: LaunchSpec,
    home: Home,
    run: RunDir,
    writer: Writer,
    backend: Backend,
    box: Box | None,
    tree_made: bool,
    error: BaseException,
) -> AgentboxError:
    """End and remove what there is of the task, record it, and return the error for the person.

    A child that was killed by a stop, or a box that a stop removed, shows as some failure here: what the
    order says then is the real reason.
    """
    if box is not None:
        backend.kill(box, time.monotonic() + UNDO_SECONDS)
        backend.destroy(box)
    if spec.new_run or orders.read_order(run.control).word == "STOP":
        # The main task's launcher may have removed them already, and this start has made them anew.
        _remove_parents(backend, spec.run_id)
    if tree_made:
        from sandbox.launch import worktree

        worktree.undo(spec, writer)
    try:
        may_start(home, run, spec.task_id)
    except Refused as refused:
        error = refused
    if not isinstance(error, AgentboxError):
        error = AgentboxError(f"the start failed: {error or type(error).__name__}")
    try:
        told: dict[str, Any] = {"why": error.what, "code": error.code or 125, "nothing_made": box is None}
        writer.append("task.failed_to_start", task_id=spec.task_id, sync=True, **told)
    except AgentboxError as unrecorded:
        return AgentboxError(f"{error.what} ({unrecorded.what})", fix=error.fix, code=error.code)
    return error


def _remove_parents(backend: Backend, run_id: str) -> None:
    try:
        for parent in backend.parents(run_id):
            backend.destroy(parent)
    except AgentboxError:
        return  # it could not be asked; what is left is empty


def _box_spec(spec: LaunchSpec, home: Home, run: RunDir) -> BoxSpec:
    """`run`'s limits hold for all that the run ever starts, `spawn`'s for its own task."""
    none = replace(spec.limits, memory=None, pids=None, cpus=None, oom_group=None)
    limits, run_limits = (none, spec.limits) if spec.new_run else (spec.limits, none)
    return BoxSpec(
        home.path,
        spec.run_id,
        spec.task_id,
        run.path,
        limits,
        run_limits,
        dict(spec.labels),
        dict(spec.container),
        joins=not spec.new_run,
    )


def _with_inode(box: Box) -> Box:
    if not box.cgroup:
        return box
    own, parent = Cgroup(box.cgroup), Cgroup(os.path.dirname(box.cgroup))
    return replace(box, cgroup_inode=own.inode(), parent_inode=parent.inode())


def _oom_kills(backend: Backend, run_id: str) -> int:
    """Counted at the run's parent, which outlives a scope that the manager removes when it is empty."""
    return sum(backend.usage(box).oom_kills or 0 for box in backend.parents(run_id))


def oom_kills_since(started: Started) -> int:
    return _oom_kills(started.backend, started.spec.run_id) - started.oom_before


def _own_identity() -> dict[str, Any]:
    own = Identity.of(os.getpid())
    return {"pid": os.getpid(), "start_ticks": own.start_ticks if own else None}
