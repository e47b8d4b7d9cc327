"""Whose a run's parent box is: several AGENTBOX_HOMEs may have boxes on one machine, with the same ids."""

from __future__ import annotations

import os
import re
import time

from sandbox.errors import AgentboxError
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.identity import boot_id

HOME_XATTR = "user.agentbox.home"
"""On a run's parent: which AGENTBOX_HOME made it (xattr(7); cgroupfs keeps user attributes since Linux 5.7)."""


_PROBE = re.compile(r"probe-[0-9]+-[0-9]+")


def probe_id() -> str:
    """The run id under which a backend tries itself out."""
    return f"probe-{os.getpid()}-{time.monotonic_ns()}"


def is_probe(run_id: str, home: str) -> bool:
    """Is it a probe's? A run may be called so too, and has a record."""
    return _PROBE.fullmatch(run_id) is not None and not os.path.isdir(f"{home}/runs/{run_id}")


def mark_home(path: str, home: str) -> None:
    try:
        os.setxattr(path, HOME_XATTR, os.fsencode(home))
    except OSError:
        pass  # kernels before 5.7: the home's own record tells


def home_of(path: str) -> str | None:
    try:
        return os.fsdecode(os.getxattr(path, HOME_XATTR))
    except OSError:
        return None


def is_ours(path: str, run_id: str, home: str) -> bool:
    """Did `home` make the parent box at `path`?

    By the mark; where there is none, by this home's record of a run of that name; and where the mark names another
    home, by the inode on record: what runs in the box may have changed the mark.
    """
    owner = home_of(path)
    if owner is None:
        return os.path.isdir(f"{home}/runs/{run_id}")
    return owner == home or _on_record(path, run_id, home)


def _on_record(path: str, run_id: str, home: str) -> bool:
    from sandbox.manifest.fold import fold
    from sandbox.manifest.reader import read

    inode = Cgroup(path).inode()
    try:
        tasks = fold(read(f"{home}/runs/{run_id}/manifest.jsonl", run_id)).tasks.values()
    except AgentboxError:
        return False
    here = [task.box.parent_inode for task in tasks if task.box and task.boot_id == boot_id()]
    return inode is not None and inode in here
