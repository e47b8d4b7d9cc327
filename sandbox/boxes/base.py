"""The contract of a backend: how a box is made, entered, seen, stopped and removed.

A run has a parent box (`task_id` None) and one box a task below it. Every verb that acts takes either, so
stopping a run is stopping its parent. Proof is a value, so that a backend without a local kernel can give it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sandbox.errors import AgentboxError
from sandbox.kernel.procfs import Member
from sandbox.kernel.spawn import Child, Step

Proof = Literal["empty", "alive", "unknown"]
"""`empty`: no live process, said by the kernel (or a positive answer of the engine). `unknown`: could not ask."""


LAUNCHER_SUFFIX = ".launcher"
"""Ends the task id of a box that holds a launcher of ours, started from inside of the run."""


class Unavailable(AgentboxError):
    """A backend can't be used here; `fix` is the exact repair."""


@dataclass(frozen=True)
class Box:
    """Where a task lives. `cgroup`: absolute directory in this host's cgroup2 mount, None where it shows none.

    `id`: what the backend itself calls it (cgroup path, unit name, container id).
    """

    backend: str
    id: str
    run_id: str
    task_id: str | None
    cgroup: str | None = None
    cgroup_inode: int | None = None
    host: str = ""
    parent_inode: int | None = None

    def as_record(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "backend": self.backend,
            "id": self.id,
            "cgroup": self.cgroup,
            "cgroup_inode": self.cgroup_inode,
            "parent_inode": self.parent_inode,
        }


@dataclass(frozen=True)
class Limits:
    """`memory` in bytes, `pids` a count, `cpus` in cores; None = not limited. `best_effort`: downgrade, say so.

    `oom_group`: where memory is short, the kernel ends all of it together (memory.oom.group, cgroup-v2.rst).
    """

    memory: int | None = None
    pids: int | None = None
    cpus: float | None = None
    best_effort: bool = False
    oom_group: bool | None = None

    def asked(self) -> dict[str, Any]:
        wanted = {"memory": self.memory, "pids": self.pids, "cpus": self.cpus, "oom-group": self.oom_group}
        return {name: value for name, value in wanted.items() if value is not None}


@dataclass(frozen=True)
class BoxSpec:
    """What `create` needs to know. `run_limits` hold for the whole run, `limits` for this task alone.

    `joins`: the run exists, and the box goes beside what it has. `container` is for backends that run an image:
    its keys are those backends' own.
    """

    home: str
    run_id: str
    task_id: str
    run_dir: str
    limits: Limits = field(default_factory=Limits)
    run_limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    joins: bool = False


@dataclass(frozen=True)
class Command:
    """What runs in a box; all is bytes, never decoded.

    `steps` are done by the child before it says that it is ready, `before_exec` after its release.
    """

    argv: list[bytes]
    env: Mapping[bytes, bytes]
    steps: Sequence[Step] = ()
    before_exec: Step | None = None


@dataclass
class Usage:
    """What a box uses now. `cpu` in seconds so far, `memory` in bytes, `pids` a count; None = could not tell."""

    pids: int | None = None
    cpu: float | None = None
    memory: int | None = None
    oom_kills: int | None = None


class Backend(Protocol):
    """One kind of box. Every call is bounded in time; none raises for a box that is gone."""

    name: str

    def probe(self) -> str:
        """Really make, fill, kill and remove a box; returns a line that describes it. Raises Unavailable."""

    def controllers(self) -> dict[str, str]:
        """Which of cpu, memory and pids a limit can use here: "" or why not. Changes nothing. Raises Unavailable."""

    def create(self, spec: BoxSpec) -> tuple[Box, list[str]]:
        """Make the task's box (and the run's parent, if need be), empty. Returns it and the limits given up.

        Raises AgentboxError where it can't be made, where it exists, or where a limit can't be applied.
        """

    def start(self, box: Box, command: Command, ready: Callable[[], None]) -> Child:
        """Put a child into the box, waiting at its barrier: nothing of the command has run on return.

        `ready` is called after the child exists and before it is waited for, so that the caller can keep it.
        Raises AgentboxError; then nothing is left in the box.
        """

    def adopt(self, box: Box, pid: int) -> None:
        """Move a process that runs already into an empty box: a launcher of ours. Raises AgentboxError."""

    def parents(self, run_id: str, hint: str | None = None) -> list[Box]:
        """The run's parent boxes that exist now, by exact id; `hint` is the cgroup that the manifest names.

        Needs no manifest. Raises Unavailable where it could not be asked.
        """

    def find(self, run_id: str, task_id: str, hint: str | None = None) -> Box | None:
        """The task's box if it exists now; `hint` is its cgroup by the manifest. Raises Unavailable."""

    def members(self, box: Box, seconds: float) -> list[Member] | None:
        """The live processes, described as far as `seconds` allow; None = could not tell."""

    def populated(self, box: Box) -> Proof: ...

    def wait_empty(self, box: Box, deadline: float) -> Proof:
        """Wait for emptiness until `deadline` (monotonic seconds)."""

    def freeze(self, box: Box, deadline: float) -> bool:
        """True once no instruction of the box executes any more; False if that was not reached by `deadline`.

        With deadline 0.0 it is only asked for, and not looked at.
        """

    def thaw(self, box: Box) -> None: ...

    def signal(self, box: Box, number: int, skip: frozenset[int] = frozenset()) -> list[int]:
        """Send to every process but the pids in `skip`; returns the pids that it could not be sent to."""

    def kill(self, box: Box, deadline: float) -> Proof:
        """Kill all until proven empty, or until `deadline` (monotonic seconds)."""

    def usage(self, box: Box) -> Usage: ...

    def destroy(self, box: Box) -> bool:
        """Remove an empty box and what is below it; False if something of it is left. Never kills."""

    def runs(self) -> Iterator[Box]:
        """The parents of all runs of this AGENTBOX_HOME that exist now. Raises Unavailable, also half-way."""

    def list(self) -> list[Box]:
        """All boxes of this AGENTBOX_HOME that exist now, parents and tasks. Raises Unavailable."""


def host_name() -> str:
    return os.uname().nodename
