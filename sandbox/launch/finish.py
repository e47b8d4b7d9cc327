"""After the command has ended: what is left of it is ended too, the outcome recorded, the box removed."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

from sandbox.boxes.base import Box, Proof
from sandbox.boxes.registry import local_backends
from sandbox.control import orders
from sandbox.control.clock import now
from sandbox.control.ladder import TERM, terminate, wait_empty
from sandbox.control.orders import Order
from sandbox.control.stop import Stop, begin, kill
from sandbox.control.targets import Target
from sandbox.errors import AGENTBOX_FAILED, REFUSED, TIMED_OUT, AgentboxError, warn
from sandbox.kernel.procfs import Member
from sandbox.launch.start import Started, oom_kills_since
from sandbox.launch.supervise import Ended, reap
from sandbox.manifest.fold import fold
from sandbox.manifest.reader import read
from sandbox.manifest.redact import command_line
from sandbox.manifest.writer import Writer

ENDING_BY_ITSELF_SECONDS = 5.0
"""How long a stop that somebody else carries out is left to it before the launcher does it too."""


@dataclass
class Finished:
    """`ended`: what to exit with. `leftovers`: what was found alive after the command, described.

    `stopped_by`: why it did not come to its own end, in the words of the stop.
    """

    ended: Ended
    outcome: str
    leftovers: list[Member] = field(default_factory=list)
    proven: bool = True
    oom_kills: int = 0
    stopped_by: str = ""


def finish(started: Started, ended: Ended, writer: Writer) -> Finished:
    """End what is left, record `task.exited` (and `run.ended` of the main task), remove the boxes.

    Nothing here can be interrupted: the launcher's signals stay blocked. Never raises for a record that can't
    be written: that is a warning.
    """
    target = _target(started)
    order = _standing(started)
    oom_kills = oom_kills_since(started)
    if ended.timed_out or ended.hung_up:
        finished = _end_by_us(started, ended, target)
    elif order.word == "STOP":
        finished = _ended_by_order(started, ended, target, order)
    else:
        finished = _ended_by_itself(started, ended, target)
    finished.oom_kills = oom_kills
    if oom_kills and finished.outcome == "signaled" and ended.signal == signal.SIGKILL:
        finished.outcome = "oom"
    _complete_receipt(started, finished, order, writer)
    _record(started, finished, order, writer)
    if finished.proven and not _kept(started, target):
        _remove(started, target)
    return finished


def _target(started: Started) -> Target:
    """Main's end is the run's, of whatever backends its tasks are; another task's end is its own box's."""
    spec, run = started.spec, started.run
    main = spec.new_run
    order = run.control if main else run.task_order(spec.task_id)
    task = None if main else spec.task_id
    others = [one for one in local_backends(started.home.path) if main and one.name != started.backend.name]
    return Target(spec.run_id, task, order, [started.backend, *others], _parent_path(started.box, main))


def _parent_path(box: Box, main: bool) -> str | None:
    return (os.path.dirname(box.cgroup) if main else box.cgroup) if box.cgroup else None


def _standing(started: Started) -> Order:
    """The stricter of the run's and the task's order."""
    found = [orders.read_order(p) for p in (started.run.control, started.run.task_order(started.spec.task_id))]
    return max(found, key=lambda order: orders.WORDS.index(order.word))


def _kept(started: Started, target: Target) -> bool:
    """Whether the boxes stay, for what was to be left and is, or may be, alive in them."""
    return _leaves(started) and any(backend.populated(box) != "empty" for backend, box in target.boxes())


def _leaves(started: Started) -> bool:
    return started.spec.on_exit == "leave"


def _end_by_us(started: Started, ended: Ended, target: Target) -> Finished:
    """Time-out and hang-up: order, SIGTERM, a while, kill."""
    why = f"timeout of {started.spec.timeout:g}s" if ended.timed_out and started.spec.timeout else "terminal hung up"
    stop = begin(target, why, _by())
    terminate(target.boxes())
    # The child is a zombie until it is reaped, which the kernel counts as empty, so the wait needs no help.
    _wait_empty(started, target, TERM)
    kill(target, stop)
    last = reap(started.pid, deadline=time.monotonic() + 1.0)
    code = TIMED_OUT if ended.timed_out else 128 + signal.SIGHUP
    outcome = "timeout" if ended.timed_out else "killed"
    result = Ended(code, last.signal if last else None)
    # After a hang-up there is no terminal to tell it on.
    told = why if ended.timed_out else ""
    return Finished(result, outcome, stop.processes, stop.proof == "empty", stopped_by=told)


def _ended_by_order(started: Started, ended: Ended, target: Target, order: Order) -> Finished:
    """A stop stands: leave it to whoever carries it out, and see that it was."""
    found: list[Member] = []
    proven = _wait_empty(started, target, ENDING_BY_ITSELF_SECONDS + order.patience) == "empty"
    if not proven:
        stop = kill(target, _silent_stop(started))
        found, proven = stop.processes, stop.proof == "empty"
    by_kill = ended.signal == signal.SIGKILL
    if ended.code == 0:
        # A run that was stopped never counts as one that succeeded, whatever its last words were.
        ended = Ended(128 + signal.SIGTERM)
    return Finished(ended, "killed" if by_kill else "stopped", found, proven, stopped_by=order.reason)


def _ended_by_itself(started: Started, ended: Ended, target: Target) -> Finished:
    """The command came to its own end; what it left is ended and listed, unless it is to be kept."""
    outcome = "exited" if ended.signal is None else "signaled"
    if _leaves(started):
        left = [m for backend, box in target.boxes() for m in backend.members(box, 1.0) or []]
        return Finished(ended, outcome, left)
    stop = begin(target, "the main command ended" if target.task_id is None else "the task's command ended", _by())
    kill(target, stop)
    return Finished(ended, outcome, stop.processes, stop.proof == "empty")


def _wait_empty(started: Started, target: Target, seconds: float) -> Proof:
    """What is left may go on to print: its log stays bounded meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        pause = started.output.look() if started.output else None
        left = max(0.0, deadline - time.monotonic())
        proof = wait_empty(target, left if pause is None else min(left, pause))
        if proof == "empty" or time.monotonic() >= deadline:
            return proof


def _silent_stop(started: Started) -> Stop:
    return Stop(started.spec.run_id, started.spec.task_id, "completing a stop", _by())


def _complete_receipt(started: Started, finished: Finished, order: Order, writer: Writer) -> None:
    """A stop that was asked for from inside of the run left its proof open: it is given here."""
    if order.word != "STOP":
        return
    ours = (started.spec.task_id, None if started.spec.new_run else started.spec.task_id)
    try:
        receipts = [r for r in fold(read(started.run.manifest)).receipts if r.get("task_id") in ours]
        if not receipts or not receipts[-1].get("from_inside") or receipts[-1].get("proof") == "empty":
            return
        stop = Stop(started.spec.run_id, receipts[-1].get("task_id"), order.reason, order.by, ordered_at=order.at)
        stop.proof, stop.empty_at = ("empty", now()) if finished.proven else ("alive", None)
        writer.append("stop.receipt", task_id=stop.task_id, sync=True, **stop.as_record())
    except AgentboxError as error:
        warn(f"the proof that run {started.spec.run_id} ended is not recorded: {error}")


def _record(started: Started, finished: Finished, order: Order, writer: Writer) -> None:
    task = started.spec.task_id
    ended = finished.ended
    if started.output:
        started.output.look()
    dropped = started.output.dropped if started.output else 0
    try:
        writer.append(
            "task.exited",
            task_id=task,
            sync=True,
            code=ended.code,
            signal=ended.signal,
            outcome=finished.outcome,
            asked_by=order.by if finished.outcome in ("killed", "stopped") else None,
            reason=order.reason if finished.outcome in ("killed", "stopped") else None,
            leftovers=[m.as_dict() for m in finished.leftovers],
            proven=finished.proven,
            oom_kills=finished.oom_kills,
            **({"output_dropped": dropped} if dropped else {}),
        )
        if started.spec.new_run:
            writer.append("run.ended", sync=True, code=ended.code, outcome=finished.outcome)
    except AgentboxError as error:
        warn(f"the end of run {started.spec.run_id} is not recorded: {error}")


def _remove(started: Started, target: Target) -> None:
    started.backend.destroy(started.box)
    for backend, box in target.boxes():
        backend.destroy(box)


def report_leftovers(finished: Finished, on_exit: str) -> None:
    """A line a process on stderr: what outlived the command and was ended (or kept)."""
    for member in finished.leftovers:
        what = command_line(member.argv, member.comm)[:120]
        warn(f"{'kept' if on_exit == 'leave' else 'ended'} what the command left: pid {member.pid} {what!r}")
    if finished.oom_kills:
        warn(f"the kernel killed {finished.oom_kills} of its processes for lack of memory")
    if not finished.proven:
        warn("some of it could not be proven dead; see `agentbox reconcile`")


def refused_code(error: AgentboxError) -> int:
    return error.code if error.code in (REFUSED, 126, 127) and error.code else AGENTBOX_FAILED


def _by() -> str:
    return f"launcher pid {os.getpid()} uid {os.getuid()}"
