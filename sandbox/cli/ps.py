"""`agentbox ps`: the runs and what they use."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sandbox.cli.arguments import output
from sandbox.cli.selection import known_runs
from sandbox.cli.table import bytes_text, seconds_text, shorten, table
from sandbox.control import orders
from sandbox.control.pause import shown_state
from sandbox.control.status import Status, statuses
from sandbox.errors import warn
from sandbox.manifest.home import Home

HEADER = ("RUN", "STATE", "BACKEND", "TASKS", "PROCS", "CPU", "MEMORY", "AGE", "COMMAND")


def ps(
    show_all: Annotated[bool, typer.Option("-a", "--all", help="Ended runs too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an array.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Ids alone.")] = False,
) -> None:
    """List runs: those that live, or with -a all. States that could not be told are shown as unknown.

    pausing: a pause is ordered (paused in --json), and not every task is known to hold.
    """
    home = Home.locate()
    found = statuses(home, known_runs(home))
    shown = [one for one in found if show_all or one.live]
    if as_json:
        text = json.dumps([summary(one) for one in shown]) + "\n"
    elif quiet:
        text = "".join(f"{one.run_id}\n" for one in shown)
    else:
        text = table(HEADER, [_row(home, one) for one in shown])
    output(text)
    if not (as_json or quiet) and (why := orders.emergency_stop(home.emergency_stop)):
        warn(f"{why}: nothing starts; agentbox estop --status")


def summary(one: Status) -> dict[str, Any]:
    """A run in short; `cpu` and `age` in seconds, `memory` in bytes, null where not known."""
    return {
        "run_id": one.run_id,
        "state": one.state,
        "why": one.why,
        "backend": one.run.backend,
        "order": one.order.word,
        "generation": one.order.generation,
        "proof": one.proof,
        "launcher_alive": one.launcher_alive,
        "tasks": len(one.run.tasks),
        "processes": one.usage.pids if one.boxes else 0,
        "cpu": one.usage.cpu,
        "memory": one.usage.memory,
        "created_at": one.run.created_at,
        "age": age(one),
        "labels": one.run.labels,
        "argv": one.run.argv,
        "bad_records": one.bad_records,
    }


def age(one: Status) -> float | None:
    try:
        created = datetime.fromisoformat(one.run.created_at or "")
        return round((datetime.now(UTC) - created).total_seconds(), 3)
    except (ValueError, TypeError):
        return None


def _row(home: Home, one: Status) -> tuple[str, ...]:
    owner_gone = one.live and one.launcher_alive is False
    return (
        one.run_id,
        shown_state(home, one) + (" (launcher gone)" if owner_gone else ""),
        one.run.backend or (one.boxes[0][0].name if one.boxes else "?"),
        str(len(one.run.tasks)),
        "0" if not one.boxes else "?" if one.usage.pids is None else str(one.usage.pids),
        seconds_text(one.usage.cpu) if one.boxes else "-",
        bytes_text(one.usage.memory) if one.boxes else "-",
        seconds_text(age(one)),
        shorten(" ".join(one.run.argv), 60),
    )
