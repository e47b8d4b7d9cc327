"""Processes that carry a run's mark in their environment and live outside of its boxes.

The mark is evidence, not membership: it is inherited, can be deleted and can be copied. So what is found here
is reported with its command line, and never ended on this ground alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sandbox.kernel.background import bounded
from sandbox.kernel.procfs import Member, all_pids, environ, look

SCAN_SECONDS = 1.0


def marked_processes(run_id: str, task_id: str | None, control: str) -> list[Member]:
    """Live processes with this run's (and task's) mark, by the run's control file, so of this home alone.

    Meant for a run that has just been proven empty: whatever has the mark then is outside. Bounded in time;
    processes whose environment can't be read are passed over.
    """
    found: list[Member] = []

    def scan() -> None:
        for pid in all_pids():
            if pid != os.getpid() and _marked(pid, run_id, task_id, control):
                member = look(pid)
                if member.state not in (None, "Z", "X"):
                    found.append(member)

    bounded(scan, SCAN_SECONDS)
    return list(found)


def marked_by_control(controls: Mapping[str, str]) -> dict[str, list[Member]]:
    """The same for many runs in one pass: `controls` gives the run of each control file; keyed by run."""
    found: dict[str, list[Member]] = {}

    def scan() -> None:
        for pid in all_pids():
            env = environ(pid) if pid != os.getpid() else None
            run_id = controls.get(env.get("AGENTBOX_CONTROL", "")) if env else None
            if env and run_id is not None and env.get("AGENTBOX_RUN_ID") == run_id:
                member = look(pid)
                if member.state not in (None, "Z", "X"):
                    found.setdefault(run_id, []).append(member)

    bounded(scan, SCAN_SECONDS)
    return {run_id: list(members) for run_id, members in list(found.items())}


def _marked(pid: int, run_id: str, task_id: str | None, control: str) -> bool:
    env = environ(pid)
    if not env or env.get("AGENTBOX_RUN_ID") != run_id or env.get("AGENTBOX_CONTROL") != control:
        return False
    return task_id is None or env.get("AGENTBOX_TASK_ID") == task_id
