"""Where containers go under an engine with the systemd cgroup driver: a slice for the run, one in it for the task.

Such an engine takes no path as `cgroup_parent`, only a slice's name, and has the manager make `docker-<id>.scope`
in it (docker-run(1), --cgroup-parent). So the task's directory is `agentbox-<run>-<task>.slice`.
"""

from __future__ import annotations

import os
from dataclasses import replace

from sandbox.boxes import systemd_bus as bus
from sandbox.boxes.base import Box, BoxSpec
from sandbox.boxes.systemd import UNIT_NAME_MAX, SystemdBackend, run_of_slice, task_slice_name
from sandbox.errors import AgentboxError
from sandbox.kernel.cgroup import Cgroup


class Slices(SystemdBackend):
    """The systemd backend, with a slice in the place of a task's scope."""

    def create(self, spec: BoxSpec) -> tuple[Box, list[str]]:
        """Start the run's slice and the task's. Raises Unavailable where the manager can't be asked."""
        scope, given_up = super().create(spec)
        name = task_slice_name(spec.run_id, spec.task_id)
        path = f"{os.path.dirname(scope.cgroup or '')}/{name}"
        if len(name) > UNIT_NAME_MAX:
            raise AgentboxError(f"the ids of {spec.run_id} and {spec.task_id} are too long for a unit name")
        if Cgroup(path).exists():
            raise AgentboxError(f"unit {name} exists already", fix=f"see `agentbox inspect {spec.run_id}`")
        limits, text = self._specs.pop(scope.id).limits, f"agentbox task {spec.task_id} of run {spec.run_id}"
        self._ask(lambda: str(bus.start_slice(self._available(), name, text, limits)))
        return replace(scope, id=name, cgroup=path, cgroup_inode=Cgroup(path).inode()), given_up

    def stop(self, path: str) -> bool:
        """Stop the empty slice whose cgroup is at `path`; False if it is still there."""
        try:
            self._ask(lambda: str(bus.stop_unit(self._available(), os.path.basename(path))))
        except AgentboxError:
            return not Cgroup(path).exists()
        return True


def run_of(path: str) -> str:
    """The run id in the name of its directory, plain or a slice."""
    name = os.path.basename(path)
    return run_of_slice(name) or name
