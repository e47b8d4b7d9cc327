"""The observer of cgroups: every box of a run that this host shows, plain or in a systemd slice, in one walk.

Whose a box is, boxes.ownership says. Units are not asked about: the cgroup is the truth, the unit's state a hint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from sandbox.boxes.base import LAUNCHER_SUFFIX, Unavailable
from sandbox.boxes.cgroup import CgroupBackend
from sandbox.boxes.ownership import home_of, is_ours, is_probe
from sandbox.boxes.systemd import run_of_slice, task_of_scope
from sandbox.boxes.where import TOP
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.mounts import Mount, cgroup2_mount
from sandbox.kernel.scan import NOTHING_THERE, children, own_pids, walk_members
from sandbox.manifest.home import Home
from sandbox.manifest.ids import is_id

SLICE = "agentbox.slice"


@dataclass
class SeenBox:
    """A run's parent box. `ours`: True by its mark or record, None = could not tell.

    `populated`: the kernel's word on the whole of it, None = could not tell. `tasks`: the processes of each task's
    box that is there, empty ones too; `loose`: those that sit in the parent itself. `containers`: what the engine
    calls each task's container; `alive`: the tasks that live by the engine's word.
    """

    backend: str
    run_id: str
    path: str | None
    inode: int | None = None
    ours: bool | None = True
    populated: bool | None = None
    tasks: dict[str, list[int]] = field(default_factory=dict)
    loose: list[int] = field(default_factory=list)
    containers: dict[str, str] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)

    @property
    def pids(self) -> list[int]:
        return [*self.loose, *(pid for pids in self.tasks.values() for pid in pids)]

    @property
    def live_tasks(self) -> list[str]:
        """Tasks with a process in their box; not the boxes of launchers."""
        return [
            task
            for task, pids in self.tasks.items()
            if (pids or task in self.alive) and not task.endswith(LAUNCHER_SUFFIX)
        ]


def read_boxes(home: Home, only: str | None = None) -> list[SeenBox]:
    """All boxes of this home, or of one run; where its own runs go also those of nobody.

    Raises Unavailable, and OSError where a look failed.
    """
    mount = cgroup2_mount()
    if mount is None:
        raise Unavailable("no cgroup v2 mount can be seen", fix="mount -t cgroup2 none /sys/fs/cgroup")
    found = []
    own = _own_tops(home, mount)
    for backend, run_id, path in _parents(mount.point, home.path):
        if only is not None and run_id != only:
            continue
        owner = home_of(path)
        recorded = os.path.isdir(os.path.join(home.path, "runs", run_id))
        if owner == home.path or (recorded and is_ours(path, run_id, home.path)):
            found.append(_look(backend, run_id, path, True))
        elif owner is None and os.path.dirname(path) in own:
            found.append(_look(backend, run_id, path, None))
    return [box for box in found if box is not None]


def _own_tops(home: Home, mount: Mount) -> set[str]:
    """Where this caller's runs go: what is elsewhere, without a mark and a record, is none of its business."""
    manager = f"/user.slice/user-{os.geteuid()}.slice/user@{os.geteuid()}.service" if os.geteuid() else ""
    found = {f"{mount.point.rstrip('/')}{manager}/{SLICE}"}
    try:
        found.add(f"{CgroupBackend(home.path).base().rstrip('/')}/{TOP}")
    except Unavailable:
        pass
    return found


def look_again(box: SeenBox) -> SeenBox | None:
    """The same box as it is now, None if it is gone; what an engine said of it stays as it was.

    Raises OSError where the look failed.
    """
    if box.path is None:
        return box
    backend = "systemd" if box.path.endswith(".slice") else box.backend
    fresh = _look(backend, box.run_id, box.path, box.ours)
    if fresh is None:
        return None
    fresh.backend, fresh.containers, fresh.alive = box.backend, box.containers, box.alive
    return fresh


def _parents(top: str, home: str) -> Iterator[tuple[str, str, str]]:
    """Backend, run id and directory of each run's parent; those of nested runs too."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        name = path.rpartition("/")[2]
        for child in children(path):
            below = f"{path}/{child}"
            if name == TOP and is_id(child) and not is_probe(child, home):
                yield "cgroup", child, below
            elif name == SLICE and (run_id := run_of_slice(child)) and not is_probe(run_id, home):
                yield "systemd", run_id, below
            waiting.append(below)


def _look(backend: str, run_id: str, path: str, ours: bool | None) -> SeenBox | None:
    """None where it is gone. Raises OSError."""
    try:
        inode = os.stat(path).st_ino
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return None
        raise
    seen = SeenBox(backend, run_id, path, inode, ours, Cgroup(path).populated())
    names = children(path)
    for name in names:
        seen.tasks[task_of_scope(name) if backend == "systemd" else name] = []
    if seen.populated is not False:
        seen.loose = own_pids(path)
        for name in names:
            task = task_of_scope(name) if backend == "systemd" else name
            seen.tasks[task] = [pid for _, pids in walk_members(f"{path}/{name}") for pid in pids if pid > 0]
    return seen
