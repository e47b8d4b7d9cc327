"""Carrying out a stop that a person asked for: which run, how hard, and its record afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from sandbox.boxes.registry import backend, local_backends
from sandbox.boxes.where import inside, own_box
from sandbox.control import orders
from sandbox.control.escapees import marked_by_control, marked_processes
from sandbox.control.nested import stops_inside
from sandbox.control.status import launcher_alive, launcher_identity, load
from sandbox.control.stop import Stop, begin, look
from sandbox.control.targets import Target
from sandbox.errors import AgentboxError
from sandbox.kernel.identity import boot_id
from sandbox.kernel.mounts import cgroup_of
from sandbox.kernel.procfs import read_stat
from sandbox.manifest.fold import Run, Task
from sandbox.manifest.home import Home
from sandbox.manifest.reader import read
from sandbox.manifest.record import whoami
from sandbox.manifest.writer import Writer

Act = Callable[[Target, Stop], Stop]


def target_of(home: Home, run_id: str, task_id: str | None = None) -> Target:
    """What to stop. Local backends are asked at once; the record, which may be large or broken, only later."""
    run = home.run_dir(run_id)
    order = run.control if task_id is None else run.task_order(task_id)
    target = Target(run_id, task_id, order, local_backends(home.path))
    target.more = lambda: [backend("docker", home.path)] if may_use_docker(home, run_id) else []
    target.record_before_own_end = lambda stop: record(home, stop)
    return target


def ended_unrecorded(home: Home, run_id: str, task: Task) -> bool:
    """Did it end with nobody left to record that? Its launcher is gone, and its box is proven empty."""
    return launcher_alive(task) is False and look(target_of(home, run_id, task.task_id)).proof == "empty"


def carry_out(home: Home, targets: list[Target], reason: str, act: Act, patience: float = 0.0) -> list[Stop]:
    """Order all stops first, then act on each, then record each. Raises nothing but for unknown tasks.

    `patience`: seconds that `act` leaves to the runs. What the caller itself is in comes last, since its end is
    the caller's: the outermost first, since its end is that of those inside it.
    """
    by = f"uid {os.getuid()} pid {os.getpid()}"
    stops = []
    for target in targets:
        target.locate()
        stops.append((target, begin(target, reason, by, patience)))
    depths = [_depth_around_us(target) for target, _ in stops]
    own = sorted((depth, place) for place, depth in enumerate(depths) if depth)
    others = [pair for pair, depth in zip(stops, depths, strict=True) if not depth]
    for group in (others, [stops[place] for _, place in own]):
        for target, stop in group:
            act(target, stop)
        controls = {home.run_dir(t.run_id).control: t.run_id for t, _ in group if t.task_id is None}
        escapees = marked_by_control(controls) if controls else {}
        for target, stop in group:
            if target.task_id is None:
                stop.escapees = escapees.get(target.run_id, [])
            else:
                control = home.run_dir(target.run_id).control
                stop.escapees = marked_processes(target.run_id, target.task_id, control)
            _doubt_if_elsewhere(home, stop)
            record(home, stop)
            settle(home, target, stop)
    return [stop for _, stop in stops]


def _doubt_if_elsewhere(home: Home, stop: Stop) -> None:
    """Where the state is shared between machines: this kernel proves nothing of a run that another one started."""
    if stop.proof != "empty" or stop.processes:
        return
    own = os.uname().nodename
    try:
        first: dict[str, Any] = next(iter(read(home.run_dir(stop.run_id).manifest, stop.run_id)), {})
        if first.get("host") in (None, own) or first.get("boot_id") == boot_id() or _has_receipt(home, stop):
            return
        tasks = [task for task in load(home, stop.run_id)[0].tasks.values() if stop.task_id in (None, task.task_id)]
    except AgentboxError:
        return
    open_ones = [task for task in tasks if task.state in ("intent", "started") and task.boot_id != boot_id()]
    hosts = sorted({task.host for task in open_ones if task.host and task.host != own})
    if hosts:
        stop.proof, stop.empty_at = "unknown", None
        where = ", ".join(hosts)
        stop.warnings.append(f"nothing of it is here, but it was started on host {where}: ask there for the proof")


def _depth_around_us(target: Target) -> int:
    """The length of the path of the target's cgroup that the caller is in, 0 for none."""
    if own_box() is None and cgroup_of() is not None:
        return 0
    return max((len(box.cgroup) for _, box in target.boxes() if box.cgroup and inside(box.cgroup)), default=0)


def record(home: Home, stop: Stop) -> None:
    """Append the order, the rungs and the receipt; a stop that changed nothing is not recorded twice."""
    if stop.already and not stop.processes and stop.proof == "empty" and stop.recorded and _has_receipt(home, stop):
        return
    own = own_box()
    run = home.run_dir(stop.run_id)
    writer = Writer(run.manifest, stop.run_id, by=whoami(inside=own is not None))
    try:
        if not stop.already:
            path = run.control if stop.task_id is None else run.task_order(stop.task_id)
            order = orders.read_order(path)
            writer.append(
                "control.set",
                task_id=stop.task_id,
                order="STOP",
                generation=order.generation,
                reason=stop.reason,
            )
        for rung in stop.rungs:
            writer.append("stop.rung", task_id=stop.task_id, **vars(rung))
        writer.append("stop.receipt", task_id=stop.task_id, sync=True, **stop.as_record())
    except AgentboxError as error:
        stop.recorded = False
        stop.warnings.append(str(error))


def _has_receipt(home: Home, stop: Stop) -> bool:
    try:
        run, _ = load(home, stop.run_id)
    except AgentboxError:
        return False
    return any(r.get("task_id") == stop.task_id and r.get("proof") == "empty" for r in run.receipts)


def settle(home: Home, target: Target, stop: Stop) -> None:
    """What is left to do once the run is dead: tell it of the runs inside, wake a stopped launcher, or clean up."""
    if stop.proof != "empty" or stop.from_inside:
        return
    for inner in stops_inside(home, stop):
        record(home, inner)
    try:
        run, _ = load(home, stop.run_id)
    except AgentboxError:
        run = Run()
    if not wake_launchers(run):
        for one, box in target.boxes():
            one.destroy(box)


def wake_launchers(run: Run) -> bool:
    """Continue launchers that were stopped with their command (Ctrl+Z): they have its end to report.

    True if a launcher lives, which will remove the boxes itself.
    """
    found = False
    for task in run.tasks.values():
        if task.state not in ("intent", "started") or launcher_alive(task) is not True:
            continue
        found = True
        identity = launcher_identity(task)
        stat = read_stat(identity.pid) if identity else None
        if identity and stat and stat.state == "T":
            identity.signal(signal.SIGCONT)
    return found


def may_use_docker(home: Home, run_id: str) -> bool:
    """Does the record name the docker backend, or is it unreadable while there is an engine to ask?"""
    try:
        run, bad = load(home, run_id)
    except AgentboxError:
        return os.path.exists("/var/run/docker.sock")
    return run.may_use("docker") or (bad > 0 and os.path.exists("/var/run/docker.sock"))
