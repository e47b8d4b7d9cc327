"""`agentbox pause` and `agentbox resume`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from sandbox.cli import values
from sandbox.cli.selection import existing_run
from sandbox.cli.table import seconds_text
from sandbox.control import pause as control
from sandbox.control.status import load
from sandbox.errors import printable, warn
from sandbox.manifest.home import Home
from sandbox.manifest.ids import check_id

Run = Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")]
Task = Annotated[str, typer.Option(metavar="ID", help="This task alone.")]


def pause(
    run: Run,
    task: Task = "",
    wait: Annotated[str, typer.Option(metavar="TIME", help="Wait until all are quiet, at most so long.")] = "0",
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Hold every worker at its next boundary. Tells which tasks are quiet, and which worktrees are dirty.

    The clock of --timeout runs on. Exit 0 if every task is quiet, 1 if not yet.
    """
    home = Home.locate()
    run_id, task_id = existing_run(home, run), check_id(task, "task id") if task else None
    seconds = values.duration(wait)
    control.hold(home, run_id, task_id)
    tasks, spent = control.wait_quiet(home, run_id, task_id, seconds, _waiting)
    control.look_at_worktrees(home, run_id, tasks)
    quiet, timeout = all(one.quiet for one in tasks), load(home, run_id)[0].timeout
    if as_json:
        found = {"run_id": run_id, "quiet": quiet, "seconds": round(spent, 3), "timeout": timeout}
        sys.stdout.write(json.dumps({**found, "tasks": [*map(control.as_dict, tasks)]}) + "\n")
    else:
        dirty = sum(one.dirty is True for one in tasks)
        more = f", dirty worktrees: {dirty}" if any(one.worktree for one in tasks) else ""
        waited = "" if quiet else f" ({', '.join(one.task_id for one in tasks if not one.quiet)})"
        sys.stdout.write(f"{run_id}: {'all quiet' if quiet else 'not quiet yet'} after {spent:.2f}s{waited}{more}\n")
        sys.stdout.writelines(_line(one) for one in tasks)
        if timeout:
            sys.stdout.write(f"  the clock of --timeout ({timeout:g}s) runs on\n")
    raise typer.Exit(0 if quiet else 1)


def resume(run: Run, task: Task = "") -> None:
    """Let every worker go on from where it holds."""
    home = Home.locate()
    run_id, task_id = existing_run(home, run), check_id(task, "task id") if task else None
    before = control.standing(home, run_id, task_id)
    order = control.release(home, run_id, task_id)
    was = "was not paused, " if order.generation == before.generation else ""
    held = task_id and control.standing(home, run_id).word == "PAUSE"
    more = f"; the run is paused: agentbox resume {run_id}" if held else ""
    name = f"{run_id} task {task_id}" if task_id else run_id
    sys.stdout.write(f"{name}: {was}{order.word} (generation {order.generation}){more}\n")


def _waiting(tasks: list[str]) -> None:
    warn(f"waiting for {', '.join(tasks)}: no gate was passed so far, the first may still come")


def _line(one: control.TaskQuiet) -> str:
    since = "" if one.since is None else f" for {seconds_text(max(0.0, time.time() - one.since))}"
    what = {"call": f"in {printable(one.call or '?')}", "no gate": "no gate: can't tell"}.get(one.state, one.state)
    tree = {True: f", dirty worktree {one.worktree}", False: "", None: f", can't tell if dirty: {one.worktree}"}[
        one.dirty
    ]
    return f"  {one.task_id}: {what}{since}{printable(tree) if one.worktree else ''}\n"
