"""The launcher: make the run, start its task, wait for it as if nobody stood between, finish.

The same few steps serve `run` and `spawn`, in the foreground and detached.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from sandbox.boxes.base import LAUNCHER_SUFFIX, Backend, BoxSpec
from sandbox.boxes.registry import choose
from sandbox.boxes.where import own_box
from sandbox.control import emergency_file, orders
from sandbox.control.under_way import is_under_way
from sandbox.errors import AgentboxError, Refused, warn
from sandbox.kernel.spawn import Step
from sandbox.launch import own_dirs
from sandbox.launch.command import require_command
from sandbox.launch.environment import environment
from sandbox.launch.finish import finish, refused_code, report_leftovers
from sandbox.launch.output import Output
from sandbox.launch.signals import Dispositions
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.start import Started, may_start, start
from sandbox.launch.supervise import Ended, supervise
from sandbox.launch.terminal import Terminal
from sandbox.manifest.home import Home, RunDir
from sandbox.manifest.record import whoami
from sandbox.manifest.writer import Writer


def launch(
    spec: LaunchSpec,
    home: Home,
    dispositions: Dispositions,
    steps: list[Step],
    announce: Callable[[Started], None],
) -> Ended:
    """Start the task and wait for its end. Raises Refused or AgentboxError, with nothing left of the task.

    `announce` is called once it runs. `steps` are done by the child before its exec.
    """
    terminal = Terminal.save()
    dispositions.block()
    if spec.worktree:
        from sandbox.launch import worktree

        _refuse_emergency(home)
        spec = worktree.planned(spec, home)
    run, writer, backend = prepare(spec, home)
    try:
        leave_own_task(spec, home, run, backend)
        output = _output(spec, run)
        steps = [*steps, ("write into its log", output.take)] if output else steps
        started = start(spec, home, run, writer, backend, steps, ("signals", dispositions.restore))
    except AgentboxError as error:
        _record_no_start(spec, run, writer, error)
        raise
    started.output = output
    announce(started)
    return _wait(started, writer, dispositions, terminal)


def _output(spec: LaunchSpec, run: RunDir) -> Output | None:
    """The log of a detached task; in the foreground the output is the caller's own."""
    if not spec.detach:
        return None
    path = run.out(spec.task_id)
    try:
        return Output.open(path, spec.output_limit)
    except OSError as error:
        raise AgentboxError(f"{path} cannot be written: {error.strerror}", fix="see `agentbox doctor`") from None


def prepare(spec: LaunchSpec, home: Home) -> tuple[RunDir, Writer, Backend]:
    """Check what can be checked before anything is made, then make (or open) the run.

    Raises Refused, or AgentboxError with the exit code.
    """
    home.ensure()
    _refuse_emergency(home)
    run = home.run_dir(spec.run_id)
    if not spec.new_run:
        may_start(home, run)
    if not spec.image:
        _check_command(spec, run)
    if spec.own_dirs:
        own_dirs.check(run)
    backend = choose(spec.backend, home.path, spec.image, None if spec.new_run else spec.run_id)
    own = own_box()
    writer = Writer(run.manifest, spec.run_id, by=whoami(inside=own is not None))
    if not spec.new_run:
        if is_under_way(run):
            raise Refused(f"a redirect of run {run.run_id} is under way", fix="wait for it, then try again")
        claim_task(run, spec.task_id)
        return run, writer, backend
    run.create()
    try:
        if spec.own_dirs:
            own_dirs.make(run)
        orders.create_order(run.control, by=f"uid {os.getuid()}")
        _record_created(spec, writer, backend, own.run_id if own else None)
        claim_task(run, spec.task_id)
    except FileExistsError:
        raise Refused(f"run {run.run_id} was stopped before its start", fix="start a new run") from None
    except (AgentboxError, OSError) as error:
        _discard(run)
        if isinstance(error, AgentboxError):
            raise
        raise AgentboxError(f"{run.path} cannot be written: {error.strerror}", fix="see `agentbox doctor`") from None
    return run, writer, backend


def _refuse_emergency(home: Home) -> None:
    if why := orders.emergency_stop(home.emergency_stop):
        standing = emergency_file.look(home)
        told = f"{why}, since {standing.since} by {standing.by}" if standing.on else why
        why = f"{told}: {standing.reason}" if standing.reason else told
        raise Refused(why, fix="lift it with `agentbox estop --lift` from outside of any box")


def _discard(run: RunDir) -> None:
    """Remove a run in which nothing was ever started and of which the record could not be written."""
    import shutil

    shutil.rmtree(run.path, ignore_errors=True)


def leave_own_task(spec: LaunchSpec, home: Home, run: RunDir, backend: Backend) -> None:
    """A launcher that an agent left in the background moves into a box of its own, beside the task's.

    In the box of the task that asked for it, it would end with that task and leave its own unwatched. It stays
    in the run, so a stop of the run ends it too.
    """
    own = own_box()
    if spec.new_run or not spec.detach or own is None or own.run_id != spec.run_id:
        return
    name = f"{spec.task_id}{LAUNCHER_SUFFIX}"
    box, _ = backend.create(BoxSpec(home.path, spec.run_id, name, run.path, joins=True))
    backend.adopt(box, os.getpid())


def claim_task(run: RunDir, task_id: str) -> None:
    """Take a task's id: its order file is made by one caller alone. Raises AgentboxError if it is taken."""
    path = run.task_order(task_id)
    try:
        orders.create_order(path, by=f"uid {os.getuid()}")
    except FileExistsError:
        raise AgentboxError(f"task id {task_id} is taken in run {run.run_id}", fix="choose another --task") from None
    except OSError as error:
        raise AgentboxError(f"{path} cannot be written: {error.strerror}", fix="see `agentbox doctor`") from None


def _check_command(spec: LaunchSpec, run: RunDir) -> None:
    """Tell a command that does not exist before a run is made for it."""
    if spec.tree is not None and b"/" in spec.argv[0]:
        return  # it may be in the worktree alone, and is looked for once that is there
    require_command(spec, environment(spec, run))


def _record_created(spec: LaunchSpec, writer: Writer, backend: Backend, parent_run: str | None) -> None:
    from sandbox import __version__

    writer.append(
        "run.created",
        argv=spec.shown_argv,
        cwd=spec.cwd,
        backend=backend.name,
        labels=dict(spec.labels),
        parent_run=parent_run,
        main_task=spec.task_id,
        detached=spec.detach,
        on_exit=spec.on_exit,
        timeout=spec.timeout,
        limits=spec.limits.asked(),
        own_dirs=spec.own_dirs,
        version=__version__,
    )


def _record_no_start(spec: LaunchSpec, run: RunDir, writer: Writer, error: AgentboxError) -> None:
    """A run whose main task did not start is over: no other may start in it."""
    if not spec.new_run:
        return
    orders.order_stop(run.control, reason="it was not started", by=f"launcher pid {os.getpid()} uid {os.getuid()}")
    try:
        writer.append("run.ended", sync=True, code=refused_code(error), outcome="not started")
    except AgentboxError:
        _discard(run)


def _wait(started: Started, writer: Writer, dispositions: Dispositions, terminal: Terminal) -> Ended:
    spec = started.spec
    deadline = time.monotonic() + spec.timeout if spec.timeout else None
    look = started.output.look if started.output else None
    ended = supervise(started.pid, dispositions=dispositions, deadline=deadline, terminal=terminal, at_intervals=look)
    finished = finish(started, ended, writer)
    terminal.restore(killed=finished.outcome != "exited")
    if finished.stopped_by and not spec.detach:
        what = f"run {spec.run_id}" if spec.new_run else f"task {spec.task_id} of run {spec.run_id}"
        warn(f"{what} was stopped: {finished.stopped_by}; agentbox report {spec.run_id} tells where")
    report_leftovers(finished, spec.on_exit)
    return finished.ended
