"""Boxes that are transient systemd scopes in the run's slice `agentbox-<run>.slice` (systemd.scope(5)).

The manager makes the unit; everything else goes by the unit's cgroup, which is the truth, while the unit's
state is a hint. So the acting half is the cgroup backend's, and stopping needs no D-Bus.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from sandbox.boxes import systemd_bus as bus
from sandbox.boxes.base import Box, BoxSpec, Command, Limits, Unavailable, host_name
from sandbox.boxes.cgroup import READY_SECONDS, CgroupBackend, subdirectories
from sandbox.boxes.limits import CONTROLLERS, NOT_THERE, applicable, group_oom, has_group_oom, usual_pids
from sandbox.boxes.ownership import is_ours, mark_home, probe_id
from sandbox.errors import AgentboxError
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.kill import kill_tree
from sandbox.kernel.mounts import cgroup_of
from sandbox.kernel.spawn import Child, ChildFailed, apart, spawn

PREFIX = "agentbox-"
UNIT_NAME_MAX = 255


class SystemdBackend(CgroupBackend):
    """Implements boxes.base.Backend with the system manager for root, the user's own manager otherwise."""

    name = "systemd"

    def __init__(self, home: str) -> None:
        super().__init__(home)
        self.user = os.geteuid() != 0
        self._specs: dict[str, BoxSpec] = {}

    def probe(self) -> str:
        """Start a scope around a child, kill it, and see the unit go."""
        self._available()
        run_id = probe_id()
        spec = BoxSpec(self.home, run_id, "main", "")
        box, _ = self.create(spec)
        child = None
        try:
            child = self.start(box, Command([b"/bin/sh"], {}))
            if kill_tree(Cgroup(self._scope_path(child.pid)), time.monotonic() + 5) is not False:
                raise Unavailable(f"a process in {box.id} could not be killed", fix="see dmesg")
        finally:
            if child:
                child.abandon()
            self.destroy(self._parent(run_id))
        return f"systemd {'user' if self.user else 'system'} manager, slice agentbox.slice"

    def controllers(self) -> dict[str, str]:
        try:
            there = Cgroup(self._manager_cgroup()).read("cgroup.controllers").split()
        except OSError as error:
            raise Unavailable(f"the manager's cgroup can't be read: {error.strerror}") from None
        why = "not delegated to this manager: Delegate= of user@.service" if self.user else NOT_THERE
        return {name: "" if name in there else why for name in CONTROLLERS}

    def _available(self) -> str:
        if not os.path.isdir("/run/systemd/system"):  # sd_booted(3)
            raise Unavailable("systemd is not PID 1 here (no /run/systemd/system)", fix="use --backend cgroup")
        self._mount()
        return bus.manager_socket(self.user)

    def create(self, spec: BoxSpec) -> tuple[Box, list[str]]:
        """Start the run's slice. The scope itself comes with its first process, in `start`."""
        socket = self._available()
        parent = self._parent(spec.run_id)
        if len(parent.id) > UNIT_NAME_MAX:
            raise AgentboxError(f"run id {spec.run_id} is too long for a unit name", fix="choose a shorter --run-id")
        path = parent.cgroup or ""
        if Cgroup(path).exists() and not is_ours(path, spec.run_id, self.home):
            raise AgentboxError(
                f"run id {spec.run_id} is in use by another AGENTBOX_HOME", fix="choose another --run-id"
            )
        manager = Cgroup(self._manager_cgroup())
        usual = Limits(pids=usual_pids(), best_effort=True) if spec.run_limits.pids is None else Limits()
        run_limits, given_up = applicable(spec.run_limits, manager)
        run_limits = replace(run_limits, pids=run_limits.pids or applicable(usual, manager)[0].pids)
        limits, more = applicable(spec.limits, manager)
        text = f"agentbox run {spec.run_id} of {self.home}"
        self._ask(lambda: str(bus.start_slice(socket, parent.id, text, run_limits)))
        mark_home(path, self.home)
        group_oom(Cgroup(path), run_limits)
        scope = scope_name(self.home, spec.run_id, spec.task_id)
        if Cgroup(f"{path}/{scope}").exists():
            raise AgentboxError(f"unit {scope} exists already", fix=f"see `agentbox inspect {spec.run_id}`")
        box = Box(self.name, scope, spec.run_id, spec.task_id, f"{path}/{scope}", None, host_name())
        self._specs[scope] = replace(spec, limits=limits)
        return box, given_up + more

    def start(self, box: Box, command: Command, ready: Callable[[], None] = lambda: None) -> Child:
        """The child waits at its barrier outside, is taken into the scope, and only then goes on.

        Nothing of the command has run by then, so nothing can stay outside.
        """
        try:
            child = spawn(command.argv, command.env, command.steps, command.before_exec)
        except OSError as error:
            raise AgentboxError(f"cannot fork: {error.strerror}", fix="check pid limits (ulimit -u)") from None
        try:
            ready()
            child.wait_ready(READY_SECONDS)
            self.adopt(box, child.pid)
            self._check_inside(child, Cgroup(box.cgroup or ""))
        except ChildFailed as error:
            child.abandon()
            raise AgentboxError(f"the child could not {error}") from None
        except BaseException:
            child.abandon()
            raise
        return child

    def adopt(self, box: Box, pid: int) -> None:
        """Start the box's scope around `pid`: a scope can't be made without a process (systemd.scope(5))."""
        socket, spec = self._available(), self._specs[box.id]
        limits = spec.limits
        above = Cgroup(os.path.dirname(box.cgroup or ""))
        grouped = bool(spec.run_limits.oom_group) or has_group_oom(above)
        text = f"agentbox task {box.task_id} of run {box.run_id}"
        parent = self._parent(box.run_id).id
        if self._ask(lambda: str(bus.start_scope(socket, box.id, parent, text, pid, limits))) != "True":
            raise AgentboxError(f"unit {box.id} exists already", fix="choose another --task")
        # The manager has no property for it in a slice, and sets it back when it starts a unit in there.
        if grouped:
            group_oom(above, Limits(oom_group=True))
        if grouped or limits.oom_group:
            group_oom(Cgroup(box.cgroup or ""), Limits(oom_group=True))

    def _ask(self, work: Callable[[], str]) -> str:
        try:
            return apart(work, bus.JOB_SECONDS + 5)
        except TimeoutError:
            raise Unavailable("systemd does not answer", fix="systemctl status; or use --backend cgroup") from None
        except RuntimeError as error:
            if "pystemd" in str(error):
                raise Unavailable(f"pystemd is missing ({error})", fix=bus.INSTALL) from None
            raise Unavailable(f"systemd refused: {error}", fix="see `agentbox doctor`") from None
        except OSError as error:
            raise AgentboxError(f"cannot fork: {error.strerror}", fix="check pid limits (ulimit -u)") from None

    def _scope_path(self, pid: int) -> str:
        where = cgroup_of(pid)
        if where is None:
            raise Unavailable(f"cannot tell the cgroup of pid {pid}", fix="see `agentbox doctor`")
        return where

    # finding boxes

    def _manager_cgroup(self) -> str:
        """The directory of the manager's own top cgroup."""
        mount = self._mount()
        top = re.sub(r"/init\.scope$", "", cgroup_of(1, mount) or mount.point).rstrip("/")
        uid = os.geteuid()
        return f"{top}/user.slice/user-{uid}.slice/user@{uid}.service" if self.user else top

    def _parent(self, run_id: str) -> Box:
        name = slice_name(run_id)
        path = f"{self._manager_cgroup()}/agentbox.slice/{name}"
        return Box(self.name, name, run_id, None, path, Cgroup(path).inode(), host_name())

    def parents(self, run_id: str, hint: str | None = None) -> list[Box]:
        try:
            parent = self._parent(run_id)
        except Unavailable:
            return []
        return [parent] if Cgroup(parent.cgroup or "").exists() and self._is_ours_run(parent) else []

    def find(self, run_id: str, task_id: str, hint: str | None = None) -> Box | None:
        names = scope_name(self.home, run_id, task_id), task_slice_name(run_id, task_id)
        for parent in self.parents(run_id):
            for name in names:
                group = Cgroup(f"{parent.cgroup}/{name}")
                if group.exists():
                    return Box(self.name, name, run_id, task_id, group.path, group.inode(), host_name())
        return None

    def _is_ours_run(self, parent: Box) -> bool:
        return is_ours(parent.cgroup or "", parent.run_id, self.home)

    def destroy(self, box: Box) -> bool:
        """Stop the run's slice, which an ended scope leaves behind; a scope goes by itself."""
        if self.populated(box) != "empty":
            return False
        if box.task_id is not None:
            return True
        try:
            socket = self._available()
            self._ask(lambda: str(bus.stop_unit(socket, box.id)))
        except AgentboxError:
            return not Cgroup(box.cgroup or "").exists()
        return True

    def runs(self) -> Iterator[Box]:
        for name in subdirectories(f"{self._manager_cgroup()}/agentbox.slice"):
            run_id = run_of_slice(name)
            parent = self._parent(run_id) if run_id else None
            if parent is not None and self._is_ours_run(parent):
                yield parent

    def list(self) -> list[Box]:
        boxes = []
        for parent in self.runs():
            boxes.append(parent)
            for scope in subdirectories(parent.cgroup or ""):
                group = Cgroup(f"{parent.cgroup}/{scope}")
                task = task_of_scope(scope)
                boxes.append(Box(self.name, scope, parent.run_id, task, group.path, group.inode(), host_name()))
        return boxes


def escape(text: str) -> str:
    """systemd-escape(1) for our ids: a dash would nest the slice, so it is written \\x2d."""
    return text.replace("-", "\\x2d")


def slice_name(run_id: str) -> str:
    return f"{PREFIX}{escape(run_id)}.slice"


def task_slice_name(run_id: str, task_id: str) -> str:
    """Of a task whose box is a container: the plain dash nests it in the run's slice (systemd.slice(5))."""
    return f"{PREFIX}{escape(run_id)}-{escape(task_id)}.slice"


def run_of_slice(name: str) -> str | None:
    """The run id of a slice of ours, or None."""
    if not (name.startswith(PREFIX) and name.endswith(".slice")) or "-" in name[len(PREFIX) :]:
        return None
    return name[len(PREFIX) : -len(".slice")].replace("\\x2d", "-")


def task_of_scope(name: str) -> str:
    """The task id of a scope (or task's slice) of ours; the unit's own name where that holds a digest in its place."""
    parts = name.removeprefix(PREFIX).removesuffix(".scope").removesuffix(".slice").split("-")
    return parts[1].replace("\\x2d", "-") if len(parts) == 2 else name


def scope_name(home: str, run_id: str, task_id: str) -> str:
    """Readable where it fits into a unit name, else with a digest in the place of the ids."""
    name = f"{PREFIX}{escape(run_id)}-{escape(task_id)}.scope"
    if len(name) <= UNIT_NAME_MAX:
        return name
    import hashlib  # loads OpenSSL

    digest = hashlib.blake2b(f"{home}\0{run_id}\0{task_id}".encode(), digest_size=12).hexdigest()
    return f"{PREFIX}{digest}.scope"
