"""`agentbox doctor`: each backend tried for real, the repair for what fails, and the ways out of a box."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from sandbox.boxes.base import Unavailable
from sandbox.boxes.doorways import open_doorways
from sandbox.boxes.limits import NOT_THERE
from sandbox.boxes.registry import NAMES, backend, choose
from sandbox.cli.arguments import output
from sandbox.control.health import home_facts
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home

CONTROLLERS_IN_V1 = "a controller that cgroup v1 has taken is free again after a boot with cgroup_no_v1=all"
"""Documentation/admin-guide/kernel-parameters.txt."""


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False) -> None:
    """Try every backend, and say how to repair what does not work.

    Exit 0 if a run can be started here, 1 if not.
    """
    home = Home.locate()
    backends = [_tried(name, home) for name in NAMES]
    state = home_facts(home)
    found: dict[str, Any] = {"backends": backends, "state": state, "ways_out": open_doorways()}
    try:
        found["auto"] = choose("auto", home.path).name
    except AgentboxError as error:
        found["auto"] = None
        found["auto_error"] = str(error)
    output(json.dumps(found) + "\n" if as_json else _told(found))
    raise typer.Exit(0 if found["auto"] and state["ok"] else 1)


def _tried(name: str, home: Home) -> dict[str, Any]:
    """`limits`: each controller with "" or why no limit can use it; None where that could not be told."""
    try:
        one = backend(name, home.path)
        what = one.probe()
    except Unavailable as error:
        return {"name": name, "works": False, "what": error.what, "repair": error.fix, "limits": None}
    except (AgentboxError, ImportError) as error:
        repair = getattr(error, "fix", "")
        return {"name": name, "works": False, "what": str(error), "repair": repair, "limits": None}
    try:
        limits = one.controllers()
    except AgentboxError:
        limits = None
    return {"name": name, "works": True, "what": what, "repair": "", "limits": limits}


def _limits(found: dict[str, str] | None) -> str:
    """`cpu, pids; not memory: why`."""
    if found is None:
        return "could not tell"
    can = ", ".join(name for name, why in found.items() if not why)
    reasons: dict[str, list[str]] = {}
    for name, why in found.items():
        if why:
            reasons.setdefault(why, []).append(name)
    return "; ".join([can or "none", *(f"not {', '.join(names)}: {why}" for why, names in reasons.items())])


def _told(found: dict[str, Any]) -> str:
    lines = []
    for one in found["backends"]:
        lines.append(f"{'ok  ' if one['works'] else 'no  '}{one['name']}: {one['what']}")
        if one["repair"]:
            lines.append(f"      repair: {one['repair']}")
        if one["works"]:
            lines.append(f"      limits: {_limits(one['limits'])}")
            if NOT_THERE in (one["limits"] or {}).values():
                lines.append(f"      repair: {CONTROLLERS_IN_V1}")
    lines.append(f"{'ok  ' if found['auto'] else 'no  '}auto: {found['auto'] or found['auto_error']}")
    state = found["state"]
    lines.append(f"{'ok  ' if state['ok'] else 'no  '}state: {state['what']}")
    lines += [f"warn  {line}" for line in state["warnings"]]
    lines.append("ways out of a box that are open to this user:")
    for one in found["ways_out"]:
        lines.append(f"      {one['name']}: {one['what']} ({one['effect']})")
    if not found["ways_out"]:
        lines.append("      none was found")
    return "\n".join(lines) + "\n"
