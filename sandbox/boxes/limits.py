"""Resource limits on a cgroup: memory.max, pids.max, cpu.max (cgroup-v2.rst)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from sandbox.boxes.base import Limits
from sandbox.errors import AgentboxError
from sandbox.kernel.cgroup import Cgroup
from sandbox.kernel.usage import task_ceiling

NOT_THERE = "not available in this cgroup2 hierarchy"
OCCUPIED = "a cgroup above holds processes of its own, so none can be enabled below it"
CONTROLLERS = ("cpu", "memory", "pids")
CPU_PERIOD = 100_000
"""Microseconds, the kernel's own default."""
PIDS_SHARE = 0.15
"""Of what the kernel can hold, for a run without --pids: systemd's own default for a unit, systemd-system.conf(5)."""


def apply_limits(group: Cgroup, limits: Limits) -> list[str]:
    """Set what was asked for; returns the limits given up (`best_effort` only). Raises AgentboxError."""
    given_up = []
    for name, (controller, file, text) in _wanted(limits).items():
        try:
            _enable(os.path.dirname(group.path), controller)
            group.write(file, text)
        except OSError as error:
            given_up.append(_give_up(limits, name, controller, _reason(error, group, controller)))
    return given_up


def applicable(limits: Limits, group: Cgroup) -> tuple[Limits, list[str]]:
    """What of `limits` the controllers of `group` allow below it, and the rest (`best_effort` only).

    For a manager that sets them itself and is silent about one that has no effect. Raises AgentboxError.
    """
    try:
        there = group.read("cgroup.controllers").split()
    except OSError:
        there = []
    missing = {name: wanted[0] for name, wanted in _wanted(limits).items() if wanted[0] not in there}
    given_up = [_give_up(limits, name, controller, NOT_THERE) for name, controller in missing.items()]
    without: dict[str, Any] = {name.replace("-", "_"): None for name in missing}
    return replace(limits, **without), given_up


def group_oom(group: Cgroup, limits: Limits) -> None:
    """Set `oom_group` where a manager set the rest: it has no property for it. Raises AgentboxError."""
    if limits.oom_group:
        apply_limits(group, Limits(oom_group=True))


def usable(path: str) -> dict[str, str]:
    """Which controllers a limit can use in a cgroup that is made below `path`: "" or why not. Changes nothing."""
    return {controller: _hindrance(path, controller) for controller in CONTROLLERS}


def _hindrance(path: str, controller: str) -> str:
    """Why `_enable` would fail, or ""."""
    group, above = Cgroup(path), os.path.dirname(path)
    try:
        if controller in group.read("cgroup.subtree_control").split():
            return ""
        if controller not in group.read("cgroup.controllers").split():
            if not os.path.exists(f"{above}/cgroup.subtree_control"):
                return NOT_THERE
            if why := _hindrance(above, controller):
                return why
        if not os.access(f"{path}/cgroup.subtree_control", os.W_OK):
            return f"{path}/cgroup.subtree_control can't be written"
        # The top of all has no type, and may hold processes beside its children (cgroup-v2.rst).
        if os.path.exists(f"{path}/cgroup.type") and group.read("cgroup.procs").strip():
            return OCCUPIED
    except OSError as error:
        return error.strerror or str(error)
    return ""


def has_group_oom(group: Cgroup) -> bool:
    try:
        return group.read("memory.oom.group").strip() == "1"
    except OSError:
        return False


def usual_pids() -> int | None:
    """How many processes and threads a run may have that was given no limit, so that none can starve the machine."""
    ceiling = task_ceiling()
    return int(ceiling * PIDS_SHARE) if ceiling else None


def bound_pids(group: Cgroup) -> None:
    """Give a run's parent the usual limit, if the controller is at hand above it; nothing is changed further up."""
    above = os.path.dirname(group.path)
    try:
        if "pids" in Cgroup(above).read("cgroup.controllers").split() and (usual := usual_pids()):
            _enable(above, "pids")
            group.write("pids.max", str(usual))
    except OSError:
        return


def _give_up(limits: Limits, name: str, controller: str, reason: str) -> str:
    why = f"--{name} cannot be applied: {controller} controller: {reason}"
    if not limits.best_effort:
        raise AgentboxError(
            why,
            fix="--limits=best-effort goes on without it",
        ) from None
    return why


def _wanted(limits: Limits) -> dict[str, tuple[str, str, str]]:
    wanted = {}
    if limits.memory is not None:
        wanted["memory"] = ("memory", "memory.max", str(limits.memory))
    if limits.pids is not None:
        wanted["pids"] = ("pids", "pids.max", str(limits.pids))
    if limits.oom_group:
        wanted["oom-group"] = ("memory", "memory.oom.group", "1")
    if limits.cpus is not None:
        wanted["cpus"] = ("cpu", "cpu.max", f"{int(limits.cpus * CPU_PERIOD)} {CPU_PERIOD}")
    return wanted


def _enable(path: str, controller: str) -> None:
    """Enable `controller` for the children of `path`, from the top of the hierarchy down."""
    group = Cgroup(path)
    if controller in group.read("cgroup.subtree_control").split():
        return
    if controller not in group.read("cgroup.controllers").split():
        above = os.path.dirname(path)
        if not os.path.exists(f"{above}/cgroup.subtree_control"):
            raise FileNotFoundError(2, NOT_THERE)
        _enable(above, controller)
    group.write("cgroup.subtree_control", f"+{controller}")


def _reason(error: OSError, group: Cgroup, controller: str) -> str:
    if error.errno == 16:
        return OCCUPIED
    return error.strerror or str(error)
