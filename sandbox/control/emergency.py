"""The emergency stop: every run of this home, on every backend, side by side.

First all runs are frozen in one pass, so that what takes time (orders, photographs, records, an engine that does
not answer) takes it while nothing of any run executes. Then each run is stopped as `kill` stops it, and that is
repeated until a fresh listing finds nothing alive.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sandbox.boxes.base import Backend, Box, Proof, Unavailable
from sandbox.boxes.registry import backend, local_backends
from sandbox.boxes.where import inside, own_box
from sandbox.control import emergency_file, orders
from sandbox.control.clock import now
from sandbox.control.escapees import marked_by_control
from sandbox.control.request import may_use_docker, record, settle, target_of
from sandbox.control.status import launcher_alive, load
from sandbox.control.stop import KILL_SECONDS, Found, Rung, Stop, begin, kill, worst
from sandbox.control.targets import Target
from sandbox.errors import NOT_PROVEN, NOT_RECORDED, PROVEN_EMPTY, AgentboxError
from sandbox.kernel.background import Background, bounded
from sandbox.kernel.mounts import cgroup_of
from sandbox.manifest.fold import Run
from sandbox.manifest.home import Home

WORKERS = 32
TURN_SECONDS = 2.0
"""How long one emergency stop waits for another of the same home, so that each run gets one receipt."""
FROZEN_SECONDS = 0.25
ORDER_SECONDS = 2.0
"""For a write to the state directory: a disk that hangs must not hold up the kill."""
ENGINE_SECONDS = 6.0
ROUNDS_SECONDS = 12.0


@dataclass
class Emergency:
    """What an emergency stop found and did. `unreachable`: why a backend could not be asked, one line each."""

    reason: str
    by: str
    stands: bool = True
    problem: str = ""
    stops: list[Stop] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)

    @property
    def proof(self) -> Proof:
        """For all runs together."""
        asked: Proof = "unknown" if self.unreachable else "empty"
        return worst([asked, *(stop.proof for stop in self.stops)])

    def as_dict(self) -> dict[str, Any]:
        """As `estop --json` gives it, beside the state of the file."""
        return {
            "proof": self.proof,
            "unreachable": self.unreachable,
            "problem": self.problem or None,
            "stops": [stop.as_receipt() for stop in self.stops],
        }

    @property
    def code(self) -> int:
        """0 proven empty, 1 survivors or could not prove it, 4 proven empty, but not all could be written."""
        if self.proof != "empty":
            return NOT_PROVEN
        recorded = self.stands and not self.problem and all(stop.recorded for stop in self.stops)
        return PROVEN_EMPTY if recorded else NOT_RECORDED


def freeze_all(backends: Sequence[Backend], unreachable: list[str]) -> Found:
    """Ask the kernel to freeze every run, without waiting for any; returns their parents.

    What has this process in it is left running, or the emergency stop would freeze itself.
    """
    found: Found = []
    own = cgroup_of()
    for one in backends:
        try:
            for box in one.runs():
                if not (box.cgroup and inside(box.cgroup, own)):
                    one.freeze(box, 0.0)
                found.append((one, box))
        except Unavailable as error:
            unreachable.append(f"{one.name}: {error}")
    return found


def living(backends: Sequence[Backend]) -> set[str]:
    """The runs that the kernel shows alive now; what could not be asked is left out."""
    found: set[str] = set()
    own = own_box()
    for one in backends:
        try:
            boxes = [box for box in one.runs() if not (own and box.cgroup in own.parents)]
            found |= {box.run_id for box in boxes if one.populated(box) == "alive"}
        except Unavailable:
            continue
    return found


def emergency_stop(home: Home, reason: str, by: str, *, make_file: bool) -> Emergency:
    """Stop everything, and make the file first if asked to. Raises nothing for what it meets."""
    result = Emergency(reason, by)
    backends = local_backends(home.path)
    found = freeze_all(backends, result.unreachable)
    with _turn(home):
        if make_file:
            _write_file(home, result)
        else:
            result.stands = orders.emergency_stop(home.emergency_stop) != ""
        _Round(home, backends, result).until_empty(found, prove_open=make_file)
    return result


def _write_file(home: Home, result: Emergency) -> None:
    done: list[tuple[bool, str]] = []
    bounded(lambda: done.append(emergency_file.write(home, result.reason, result.by)), ORDER_SECONDS)
    late = (False, f"{home.emergency_stop} could not be written within {ORDER_SECONDS:g} s")
    result.stands, result.problem = done[0] if done else late


@contextmanager
def _turn(home: Home) -> Iterator[None]:
    """One after the other: flock(2) on the home. Who can't have it goes on without: it only keeps records single."""
    fd = -1
    opened: list[int] = []
    bounded(lambda: opened.append(_open_home(home)), ORDER_SECONDS)
    if opened:
        fd = opened[0]
    deadline = time.monotonic() + TURN_SECONDS
    while fd >= 0 and time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(0.005)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _open_home(home: Home) -> int:
    try:
        return os.open(home.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return -1


class _Round:
    """Rounds over all runs, each run with one Stop however often it comes up."""

    def __init__(self, home: Home, backends: list[Backend], result: Emergency) -> None:
        self.home = home
        self.backends = backends
        self.result = result
        self.jobs: dict[str, tuple[Target, Stop]] = {}
        own = own_box()
        self.own_parents = frozenset(own.parents if own else ())
        self.unplaced = cgroup_of() is None

    def until_empty(self, found: Found, *, prove_open: bool) -> None:
        engine = _Engine(self.home)
        frozen = self._wait_frozen(found)
        deadline = time.monotonic() + ROUNDS_SECONDS
        wanted = self._wanted(found)
        while wanted:
            self._stop(wanted, frozen)
            if time.monotonic() >= deadline:
                break
            self.result.unreachable.clear()
            found = freeze_all(self.backends, self.result.unreachable)
            frozen = self._wait_frozen(found)
            wanted = [box.run_id for one, box in found if one.populated(box) != "empty" and not self._own(box)]
        self._stop_containers(engine)
        if prove_open and not self.own_parents and not self.unplaced:
            self._prove_open()
        self._thaw_others(found)
        self._record()
        self._stop_own(found)

    def _own(self, box: Box) -> bool:
        return box.cgroup in self.own_parents or (self.unplaced and box.cgroup is not None and inside(box.cgroup))

    def _wait_frozen(self, found: Found) -> dict[str, str]:
        """When each run was frozen whole, by run; what could not be frozen in time is left out."""
        deadline = time.monotonic() + FROZEN_SECONDS
        late = {box.run_id for one, box in found if not self._own(box) and not one.freeze(box, deadline)}
        at = now()
        living = {box.run_id for one, box in found if not self._own(box) and one.populated(box) == "alive"}
        return dict.fromkeys(living - late, at)

    def _wanted(self, found: Found) -> list[str]:
        """What lives by the kernel, and what the record says may be on its way to life."""
        wanted = {box.run_id: None for one, box in found if one.populated(box) != "empty" and not self._own(box)}
        own = {box.run_id for _, box in found if self._own(box)}
        try:
            known = self.home.runs()
        except AgentboxError as error:
            self.result.problem = self.result.problem or str(error)
            known = []
        for run_id in [*known, *(box.run_id for _, box in found)]:
            if run_id not in wanted and run_id not in own and self._may_come_to_life(run_id):
                wanted[run_id] = None
        return list(wanted)

    def _may_come_to_life(self, run_id: str) -> bool:
        """Its order allows a start, and a launcher of it lives or can't be ruled out."""
        order = orders.read_order(self.home.run_dir(run_id).control)
        if order.word == "STOP" and order.trusted:
            return False
        try:
            run, _ = load(self.home, run_id)
        except AgentboxError:
            return True
        tasks = [task for task in run.tasks.values() if task.state in ("intent", "started")]
        return run.ended is None and (_uses_docker(run) or any(launcher_alive(task) for task in tasks))

    def _stop(self, run_ids: Sequence[str], frozen: Mapping[str, str]) -> None:
        side_by_side([partial(self._stop_one, run_id, frozen.get(run_id)) for run_id in run_ids], KILL_SECONDS + 5)

    def _stop_one(self, run_id: str, frozen_at: str | None) -> None:
        target, stop = self._job(run_id)
        stop.frozen_at = stop.frozen_at or frozen_at
        try:
            kill(target, stop)
        except (AgentboxError, OSError) as error:
            stop.proof = "unknown"
            stop.warnings.append(str(error))

    def _job(self, run_id: str) -> tuple[Target, Stop]:
        if run_id not in self.jobs:
            target = target_of(self.home, run_id)
            ordered: list[Stop] = []
            bounded(lambda: ordered.append(begin(target, self.result.reason, self.result.by)), ORDER_SECONDS)
            stop = ordered[0] if ordered else self._unordered(run_id)
            self.jobs[run_id] = (target, stop)
            self.result.stops.append(stop)
        return self.jobs[run_id]

    def _unordered(self, run_id: str) -> Stop:
        stop = Stop(run_id, None, self.result.reason, self.result.by, ordered_at=now(), recorded=False)
        stop.rungs.append(Rung("order", now()))
        stop.warnings.append(f"the stop order could not be written within {ORDER_SECONDS:g} s")
        return stop

    def _stop_containers(self, engine: _Engine) -> None:
        """What only an engine knows: containers elsewhere, made and not started, or of a run without a record."""
        boxes, problem = engine.answer()
        if problem and any(may_use_docker(self.home, run_id) for run_id in self._not_ended()):
            self.result.unreachable.append(problem)
        work = []
        for run_id in dict.fromkeys(box.run_id for box in boxes):
            target, _ = self._job(run_id)
            if not any(one.name == "docker" for one in target.backends):
                target.backends, target.more = [*target.backends, backend("docker", self.home.path)], None
                work.append(partial(self._stop_one, run_id, None))
        side_by_side(work, KILL_SECONDS + 5)

    def _prove_open(self) -> None:
        """Runs that an earlier stop could not prove empty, as of an engine that was down: their record waits for it."""
        still_open = []
        for run_id in _names(self.home):
            try:
                receipts = load(self.home, run_id)[0].receipts if run_id not in self.jobs else []
            except AgentboxError:
                continue
            whole = [receipt for receipt in receipts if receipt.get("task_id") is None]
            if whole and whole[-1].get("proof") != "empty":
                still_open.append(run_id)
        self._stop(still_open, {})

    def _not_ended(self) -> list[str]:
        """Runs that may have a container now, by the record."""
        found = []
        for run_id in {*self.jobs, *_names(self.home)}:
            try:
                if load(self.home, run_id)[0].ended is None:
                    found.append(run_id)
            except AgentboxError:
                found.append(run_id)
        return found

    def _thaw_others(self, found: Found) -> None:
        """The empty boxes that were frozen with the rest: the flag would hold whatever comes into them."""
        for one, box in found:
            if one.populated(box) == "empty":
                one.thaw(box)

    def _record(self) -> None:
        """Receipts last: no disk, lock or large record holds up a kill."""
        self.result.stops.sort(key=lambda stop: stop.run_id)
        controls = {self.home.run_dir(run_id).control: run_id for run_id in self.jobs}
        escapees = marked_by_control(controls) if controls else {}
        for run_id, (target, stop) in self.jobs.items():
            stop.escapees = escapees.get(run_id, [])
            record(self.home, stop)
            settle(self.home, target, stop)

    def _stop_own(self, found: Found) -> None:
        """The run that this process is in, and those around it, at the very end: it ends this process."""
        own = sorted((box.cgroup or "", box.run_id) for _, box in found if self._own(box))
        for _, run_id in own:
            self._job(run_id)
        for _, run_id in own:
            self._stop_one(run_id, None)


class _Engine:
    """The docker engine's list of our containers, asked for in the background while the local runs are killed."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.boxes: list[Box] = []
        self.problem = "docker: the engine has not answered in time"
        self.deadline = time.monotonic() + ENGINE_SECONDS
        self.asking: Background | None = None
        if os.environ.get("DOCKER_HOST") or os.access("/var/run/docker.sock", os.W_OK) or _has_context():
            try:
                self.asking = Background(self._ask)
            except RuntimeError:
                self.problem = "docker: no thread can be made to ask the engine"
        else:
            self.problem = ""

    def _ask(self) -> None:
        try:
            self.boxes = list(backend("docker", self.home.path).runs())
            self.problem = ""
        except AgentboxError as error:
            self.problem = f"docker: {error}"
        except Exception as error:
            self.problem = f"docker: {type(error).__name__}: {error}"

    def answer(self) -> tuple[list[Box], str]:
        """The runs' boxes and "", or why they are not known."""
        if self.asking is not None:
            self.asking.wait(max(0.0, self.deadline - time.monotonic()))
        return ([], self.problem) if self.problem else (self.boxes, "")


def _has_context() -> bool:
    """Is an engine other than the default one configured (docker context)?"""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    return os.path.isdir(f"{folder}/contexts/meta")


def _uses_docker(run: Run) -> bool:
    return run.backend == "docker" or any(task.backend == "docker" for task in run.tasks.values())


def _names(home: Home) -> list[str]:
    try:
        return home.runs()
    except AgentboxError:
        return []


def side_by_side(work: Sequence[Callable[[], None]], seconds: float) -> None:
    """Do all of it, WORKERS at a time, and return when it is done or after `seconds` (what hangs is left behind).

    Where no thread can be made it is done here, one after the other.
    """
    queue = list(work)

    def take() -> None:
        while queue:
            try:
                job = queue.pop(0)
            except IndexError:
                return
            job()

    threads = []
    for _ in range(min(WORKERS, len(queue))):
        try:
            threads.append(Background(take))
        except RuntimeError:
            break
    if not threads:
        take()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.wait(max(0.0, deadline - time.monotonic()))
