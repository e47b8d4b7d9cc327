"""The observer of processes outside of the boxes: which of them are a run's, and on what evidence.

| evidence           | what it is | proof |
| ------------------ | ---------- | ----- |
| recorded           | pid, start and boot of a process that the record names | yes |
| descends from      | its parent, or the leader of its session, is a proven process of the run | yes |
| environment        | it carries AGENTBOX_RUN_ID and the run's own AGENTBOX_CONTROL: inherited, or copied | no |

Weaker evidence, for what was started by a server outside, is in doorways.py. What is not proven is never ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandbox.boxes.where import own_box
from sandbox.kernel.identity import Identity, boot_id
from sandbox.kernel.mounts import Mount, cgroup2_mount, cgroup_of
from sandbox.kernel.procfs import Member, look, wall_start
from sandbox.kernel.scan import Table, hidden_processes, proc_hides, scan_processes, variables
from sandbox.manifest.home import Home
from sandbox.manifest.redact import redact
from sandbox.reconcile.boxes import SeenBox
from sandbox.reconcile.records import Recorded
from sandbox.reconcile.servers import secret_variables

_CONTAINER = re.compile(r"[0-9a-f]{64}")


@dataclass
class Stray:
    """A process of a run outside of its boxes, with those that descend from it.

    `evidence`: what tells whose it is, by name. `queued`: nothing runs yet (an at job, a timer); then there is no
    process, and `command` ends it.
    """

    run_id: str
    task_id: str | None
    member: Member
    evidence: dict[str, str]
    proven: bool = False
    cgroup: str | None = None
    secrets: list[str] = field(default_factory=list)
    below: list[Member] = field(default_factory=list)
    what: str = ""
    command: str = ""
    since: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.member.pid, self.member.start_ticks, self.what if not self.member.pid else "")

    @property
    def identities(self) -> tuple[Identity, ...]:
        everyone = [self.member, *self.below]
        return tuple(Identity(boot_id(), m.pid, m.start_ticks) for m in everyone if m.start_ticks is not None)

    def as_evidence(self) -> dict[str, Any]:
        member = self.member
        return {
            "pid": member.pid or None,
            "start_ticks": member.start_ticks,
            "argv": redact(member.argv or []),
            "cwd": member.cwd,
            "uid": member.uid,
            "state": member.state,
            "age": member.age,
            "cgroup": self.cgroup,
            "told_by": self.evidence,
            "processes": [{"pid": one.pid, "argv": redact(one.argv or [])} for one in self.below],
            "secret_variables": self.secrets,
        }


@dataclass
class Outside:
    """`strays`, the process table they were found in, and how many processes it does not even show."""

    strays: list[Stray]
    table: Table
    hidden: int


Weak = Callable[[Table, "Finder"], Iterable[Stray]]


def read_outside(
    home: Home, boxes: list[SeenBox], runs: Mapping[str, Recorded], only: str | None, weak: Weak
) -> Outside:
    """Everything of this home's runs that lives outside of `boxes`."""
    inside = {pid: box.run_id for box in boxes for pid in box.pids}
    table = scan_processes(inside)
    finder = Finder(home, table, inside, runs, {box.path for box in boxes if box.path}, only)
    strays = finder.topmost([*finder.proven(), *finder.marked(), *weak(table, finder)])
    hidden = 0
    mount = cgroup2_mount()
    if mount and os.geteuid() != 0 and proc_hides():
        hidden = hidden_processes(mount.point)
    return Outside(strays, table, hidden)


class Finder:
    """Looks for a run's processes in a process table. `inside`: the run of each process in a box."""

    def __init__(
        self,
        home: Home,
        table: Table,
        inside: Mapping[int, str],
        runs: Mapping[str, Recorded],
        paths: set[str],
        only: str | None = None,
    ) -> None:
        self.home = home
        self.table = table
        self.inside = inside
        self.runs = runs
        self.paths = paths
        self.only = only
        self.mount: Mount | None = cgroup2_mount()
        self.own = _ancestors(table)

    def proven(self) -> list[Stray]:
        """What the record names, and what descends from a box or from such a process."""
        found: dict[int, Stray] = {}
        for run_id, seen in self.runs.items():
            for task in seen.run.tasks.values():
                stat = self.table.stats.get(task.pid or 0)
                # A container's recorded process is the client that stands for it.
                if stat is None or task.backend == "docker" or task.boot_id != boot_id():
                    continue
                if stat.start_ticks == task.start_ticks and stat.state not in "ZX":
                    told = {"recorded": f"pid {stat.pid} is the recorded process of task {task.task_id}"}
                    self._add(found, stat.pid, run_id, task.task_id, told)
        owners = dict(self.inside) | {pid: stray.run_id for pid, stray in found.items()}
        for pid in sorted(self.table.stats, key=lambda one: self.table.stats[one].start_ticks):
            stat = self.table.stats[pid]
            for relation, other in (("parent", stat.ppid), ("session leader", stat.session)):
                if other != pid and other in owners and pid not in found and pid not in self.own:
                    told = {"descends from": f"its {relation} {other} is a process of the run"}
                    if self._add(found, pid, owners[other], None, told):
                        owners[pid] = owners[other]
        return list(found.values())

    def marked(self) -> list[Stray]:
        found: dict[int, Stray] = {}
        for pid, raw in self.table.environs.items():
            values = variables(raw)
            run_id = values.get("AGENTBOX_RUN_ID", "")
            if pid in self.own or not self._is_control_of(values.get("AGENTBOX_CONTROL", ""), run_id):
                continue
            if self._contained(pid, run_id):
                continue
            told = {"environment": f"AGENTBOX_RUN_ID={run_id}, AGENTBOX_CONTROL of this state directory"}
            self._add(found, pid, run_id, values.get("AGENTBOX_TASK_ID"), told, proven=False)
        return list(found.values())

    def _contained(self, pid: int, run_id: str) -> bool:
        """Is it in a container of a run that uses them? Its engine may put that outside of what is seen as a box."""
        run = self.runs.get(run_id)
        engine = run is None or run.run.backend in (None, "docker")
        return engine and bool(_CONTAINER.search(cgroup_of(pid, self.mount) or ""))

    def _is_control_of(self, control: str, run_id: str) -> bool:
        return bool(run_id) and control == os.path.join(self.home.path, "runs", run_id, "ctl/control")

    def _add(
        self,
        found: dict[int, Stray],
        pid: int,
        run_id: str,
        task_id: str | None,
        told: dict[str, str],
        proven: bool = True,
    ) -> bool:
        if self.only not in (None, run_id):
            return False
        stray = self.stray(pid, run_id, task_id, told, proven)
        if stray is not None:
            found[pid] = stray
        return stray is not None

    def stray(self, pid: int, run_id: str, task_id: str | None, told: dict[str, str], proven: bool) -> Stray | None:
        """Describe a process, unless it is gone, a zombie, or in a box after all (it may have entered meanwhile)."""
        stat = self.table.stats.get(pid)
        if stat is None or stat.state in "ZX":
            return None
        where = cgroup_of(pid, self.mount)
        if where is not None and self.in_a_box(where):
            return None
        member = look(pid)
        if member.start_ticks != stat.start_ticks or member.state in (None, "Z", "X"):
            return None
        return Stray(
            run_id, task_id, member, told, proven, where, secret_variables(pid), since=wall_start(stat.start_ticks)
        )

    def in_a_box(self, where: str) -> bool:
        if own_box(where) is not None:
            return True
        return any(where == path or where.startswith(f"{path}/") for path in self.paths)

    def topmost(self, strays: list[Stray]) -> list[Stray]:
        """One for each tree: what descends from another goes with it. Proven evidence comes first."""
        by_pid: dict[int, Stray] = {}
        queued = [stray for stray in strays if not stray.member.pid]
        for stray in (one for one in strays if one.member.pid):
            known = by_pid.setdefault(stray.member.pid, stray)
            if known is not stray:
                known.evidence.update(stray.evidence)
                known.task_id = known.task_id or stray.task_id
                known.command = known.command or stray.command
        tops: list[Stray] = queued
        for stray in by_pid.values():
            top = stray
            while (above := by_pid.get(top.member.ppid or 0)) and above.run_id == top.run_id:
                top = above
            if top is stray:
                tops.append(stray)
            else:
                top.below.append(stray.member)
                top.evidence = {**stray.evidence, **top.evidence}
                top.proven = top.proven and stray.proven
                top.secrets = sorted({*top.secrets, *stray.secrets})
        return tops


def _ancestors(table: Table) -> set[int]:
    """This process and those above it: never a finding, whatever they carry."""
    found, pid = {os.getpid()}, os.getppid()
    while pid and pid not in found:
        found.add(pid)
        stat = table.stats.get(pid)
        pid = stat.ppid if stat else 0
    return found
