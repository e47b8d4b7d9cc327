"""Boxes that are containers of a docker engine, or of Podman behind the same API.

On a local engine each task has its directory `<base>/agentbox/<run>/<task>` like a cgroup box, and its container
lives below it (`cgroup_parent`): freeze, kill and proof are the kernel's, also while the engine does not answer.
The engine is asked after that, for what no cgroup shows: containers made and not started, restart policies,
containers of an engine elsewhere. `empty` needs both answers; an engine that can't be asked gives `unknown`.

Nothing that ran is deleted: an ended container stays for its owner to look at. Values of passed variables show
in `docker inspect` for those who may ask the engine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from sandbox.boxes.base import LAUNCHER_SUFFIX, Box, BoxSpec, Command, Proof, Unavailable, Usage, host_name
from sandbox.boxes.cgroup import CgroupBackend, read_usage
from sandbox.boxes.docker_client import Plan, fork_client
from sandbox.boxes.docker_containers import SETTLE_SECONDS, Containers, own_directory, parent_id
from sandbox.boxes.docker_engine import ACT_SECONDS, ASK_SECONDS, Container, Engine, Facts
from sandbox.boxes.docker_probe import try_one
from sandbox.boxes.docker_slices import Slices, run_of
from sandbox.boxes.docker_spec import check, container_name, limits_missing
from sandbox.boxes.limits import CONTROLLERS
from sandbox.boxes.ownership import is_ours
from sandbox.errors import AGENTBOX_FAILED, AgentboxError
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.kill import kill_tree, signal_all
from sandbox.kernel.procfs import Member
from sandbox.kernel.spawn import Child, ChildFailed, apart

# Aliases, since the contract has a method named list.
Boxes = list[Box]
Lines = list[str]
Members = list[Member]
Pids = list[int]


@dataclass(frozen=True)
class _Made:
    """What `create` has found out for `start`. `parent`: the task's cgroup in the engine's own words."""

    spec: BoxSpec
    facts: Facts
    cgroup: str | None
    parent: str | None


class DockerBackend(CgroupBackend):
    """Implements boxes.base.Backend. `notes`: what a person should know of what was met, one line each."""

    name = "docker"

    def __init__(self, home: str) -> None:
        super().__init__(home)
        self.notes: list[str] = []
        self._made: dict[str, _Made] = {}
        self._containers = Containers(home, self.notes.append)

    # making a box

    def probe(self) -> str:
        """Make, start, kill and remove a container of whatever image the engine has with a shell in it."""
        facts = self._facts("")
        try_one(self, self._containers)
        return f"docker engine on {facts.host}, {'local' if facts.local else 'by its API alone'}, {facts.driver} driver"

    def controllers(self) -> dict[str, str]:
        facts = self._facts("")
        try:
            if facts.local:
                return Slices(self.home).controllers() if facts.driver == "systemd" else super().controllers()
        except Unavailable:
            pass  # then by the engine alone
        there = [name.removesuffix("s") if name == "cpus" else name for name in facts.limits]
        return {name: "" if name in there else "the engine has no such controller" for name in CONTROLLERS}

    def create(self, spec: BoxSpec) -> tuple[Box, list[str]]:
        """Make the task's cgroup where the engine is local. The container itself comes with the child, in `start`."""
        if spec.task_id.endswith(LAUNCHER_SUFFIX):
            return super().create(spec)
        facts = self._facts(check(spec))
        name = container_name(spec)
        box, parent = Box(self.name, name, spec.run_id, spec.task_id, host=host_name()), None
        given_up: Lines = []
        if facts.local:
            try:
                box, given_up, parent = self._directory(spec, facts)
            except Unavailable as error:
                # A user who may talk to the engine, but has no cgroup of its own: the API alone.
                self.notes.append(f"run {spec.run_id} is stopped through the engine alone: {error}")
        if box.cgroup is None:
            given_up = limits_missing(spec, facts)
        self._made[name] = _Made(spec, facts, box.cgroup, parent)
        return replace(box, backend=self.name, id=name), given_up

    def _directory(self, spec: BoxSpec, facts: Facts) -> tuple[Box, Lines, str]:
        """Make the task's cgroup; with what the engine calls it."""
        if facts.driver == "systemd":
            box, given_up = Slices(self.home).create(spec)
            return box, given_up, box.id
        box, given_up = super().create(spec)
        return box, given_up, (box.cgroup or "")[len(self._mount().point.rstrip("/")) :]

    def _facts(self, image: str) -> Facts:
        """Asked in a child of its own: the launcher stays small, and an engine that hangs costs a bounded time."""

        def ask() -> str:
            try:
                engine = Engine(ASK_SECONDS)
                facts = engine.facts()
                if image:
                    engine.check_image(image)
            except AgentboxError as error:
                return json.dumps({"what": error.what, "fix": error.fix, "away": isinstance(error, Unavailable)})
            return json.dumps(asdict(facts))

        try:
            answer = json.loads(apart(ask, 4 * ASK_SECONDS))
        except (TimeoutError, OSError, RuntimeError) as error:
            raise Unavailable(f"the docker engine cannot be asked: {error}", fix="see its log") from None
        if "what" in answer:
            kind = Unavailable if answer["away"] else AgentboxError
            raise kind(answer["what"], fix=answer["fix"], code=AGENTBOX_FAILED)
        return Facts(**{**answer, "limits": tuple(answer["limits"])})

    def start(self, box: Box, command: Command, ready: Callable[[], None] = lambda: None) -> Child:
        """The child makes the container and waits; when released it starts it and stands for it."""
        made = self._made[box.id]
        group = Cgroup(made.cgroup) if made.cgroup else None
        plan = Plan(
            box.id,
            made.spec,
            command,
            made.facts,
            made.cgroup,
            made.parent,
            lambda: None if group is None else group.populated() is False,
        )
        try:
            child = fork_client(plan)
        except OSError as error:
            raise AgentboxError(f"cannot fork: {error.strerror}", fix="check pid limits (ulimit -u)") from None
        try:
            ready()
            child.wait_ready(ACT_SECONDS + ASK_SECONDS)
        except BaseException as error:
            child.abandon()
            self._remove_unstarted(box)
            if isinstance(error, ChildFailed):
                raise AgentboxError(f"the child could not {error}") from None
            raise
        return child

    def _remove_unstarted(self, box: Box) -> None:
        try:
            self._containers.end(box, time.monotonic() + ASK_SECONDS)
        except AgentboxError:
            return  # never started, so nothing runs; a stop or `reconcile` meets it again

    # finding boxes

    def parents(self, run_id: str, hint: str | None = None) -> list[Box]:
        own = {os.path.dirname(m.cgroup) for m in self._made.values() if m.cgroup and m.spec.run_id == run_id}
        if own:
            # Made here: the engine need not be asked, which keeps its client library out of a launcher.
            return [self._parent(run_id, path) for path in own if os.path.isdir(path)]
        tasks = [self._task(state) for state in self._containers.living(run_id)]
        return self._parents_of(tasks)

    def find(self, run_id: str, task_id: str, hint: str | None = None) -> Box | None:
        found = (state for state in self._containers.living(run_id) if state.task_id == task_id)
        return next((self._task(state) for state in found), None)

    def runs(self) -> Iterator[Box]:
        yield from self._parents_of([self._task(state) for state in self._containers.living()])

    def list(self) -> list[Box]:
        tasks = [self._task(state) for state in self._containers.living()]
        return [*self._parents_of(tasks), *tasks]

    def _parents_of(self, tasks: Sequence[Box]) -> Boxes:
        keys = {(box.run_id, os.path.dirname(box.cgroup) if box.cgroup else None): None for box in tasks}
        return [self._parent(run_id, path) for run_id, path in keys]

    def _task(self, state: Container) -> Box:
        path = own_directory(state, self._is_ours)
        inode = Cgroup(path).inode() if path else None
        return Box(self.name, state.name, state.run_id, state.task_id, path, inode, host_name())

    def _parent(self, run_id: str, path: str | None) -> Box:
        inode = Cgroup(path).inode() if path else None
        return Box(self.name, parent_id(run_id), run_id, None, path, inode, host_name())

    # acting on a box: its cgroup first, where it has one, then the engine

    def _local(self, box: Box) -> bool:
        """Does the kernel show a live process in the box's own cgroup?"""
        return box.cgroup is not None and Cgroup(box.cgroup).populated() is True

    def members(self, box: Box, seconds: float) -> Members | None:
        if self._local(box):
            return super().members(box, seconds)
        try:
            return self._containers.processes(box, seconds)
        except AgentboxError:
            return None

    def populated(self, box: Box) -> Proof:
        if self._local(box):
            return "alive"
        if box.cgroup is not None and Cgroup(box.cgroup).populated() is None:
            return "unknown"
        try:
            return "empty" if all(state.down for state in self._containers.of(box)) else "alive"
        except AgentboxError:
            return "unknown"

    def wait_empty(self, box: Box, deadline: float) -> Proof:
        if box.cgroup is not None:
            Cgroup(box.cgroup).wait("populated", False, deadline)
        while (proof := self.populated(box)) != "empty" and time.monotonic() < deadline:
            time.sleep(SETTLE_SECONDS)
        return proof

    def freeze(self, box: Box, deadline: float) -> bool:
        if self._local(box):
            return super().freeze(box, deadline)
        try:
            return self._containers.pause(box, deadline)
        except AgentboxError:
            return False

    def thaw(self, box: Box) -> None:
        if box.cgroup is not None:
            super().thaw(box)
            return
        try:
            self._containers.unpause(box)
        except AgentboxError:
            return

    def signal(self, box: Box, number: int, skip: frozenset[int] = frozenset()) -> Pids:
        """In a local box each process gets it, but for the init, which would pass it on a second time."""
        if box.cgroup is not None and self._local(box):
            return signal_all(Cgroup(box.cgroup), number, skip=skip | {os.getpid(), *self._inits(box)})
        try:
            return self._containers.signal(box, number, skip)
        except AgentboxError:
            return []

    def _inits(self, box: Box) -> Sequence[int]:
        try:
            return [state.pid for state in self._containers.of(box, 1.0) if state.running]
        except AgentboxError:
            return []

    def kill(self, box: Box, deadline: float) -> Proof:
        """The cgroup first: a frozen one would make the engine hang, and the engine may not answer at all."""
        while True:
            local = self._kill_local(box, deadline)
            try:
                engine = self._containers.end(box, deadline)
            except AgentboxError:
                return "alive" if local == "alive" else "unknown"
            if local == engine == "empty" and not self._local(box):
                return "empty"
            if time.monotonic() >= deadline:
                return "alive" if "alive" in (local, engine) or self._local(box) else "unknown"
            time.sleep(SETTLE_SECONDS)

    def _kill_local(self, box: Box, deadline: float) -> Proof:
        if box.cgroup is None:
            return "empty"
        group = Cgroup(box.cgroup)
        populated = kill_tree(group, deadline)
        group.thaw()
        return "unknown" if populated is None else "alive" if populated else "empty"

    def usage(self, box: Box) -> Usage:
        if box.cgroup is not None:
            return read_usage(Cgroup(box.cgroup))
        try:
            return Usage(oom_kills=sum(state.oom_killed for state in self._containers.of(box)))
        except AgentboxError:
            return Usage()

    def destroy(self, box: Box) -> bool:
        """Remove the cgroup and what was made and never started. A container that has ended stays."""
        if self._local(box):
            return False
        removed = box.cgroup is None or self._remove_directory(box.cgroup)
        try:
            return self._containers.remove_unstarted(box) and removed
        except AgentboxError:
            return False

    def _remove_directory(self, path: str) -> bool:
        return Slices(self.home).stop(path) if path.endswith(".slice") else Cgroup(path).remove()

    def _is_ours(self, path: str) -> bool:
        return is_ours(path, run_of(path), self.home)
