"""`agentbox redirect`: change part of a fleet's plan by a table."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sandbox.cli import values
from sandbox.cli.selection import existing_run
from sandbox.control import redirect as control
from sandbox.control.table import parse
from sandbox.errors import NOT_PROVEN, USAGE, AgentboxError
from sandbox.manifest.home import Home

TABLE_MAX = 1 << 22


def redirect(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")],
    table: Annotated[str, typer.Option("--table", metavar="FILE", help="JSON or TOML; - for stdin.")] = "",
    draft: Annotated[bool, typer.Option("--draft", help="Print the table to fill in.")] = False,
    touches: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="With --draft: files of interest.")] = None,
    grace: Annotated[str, typer.Option(metavar="TIME", help="For dropped tasks, before SIGTERM.")] = "30s",
    term: Annotated[str, typer.Option(metavar="TIME", help="Then before the kill.")] = "10s",
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Change part of a fleet's plan by a table.

    It names every task in flight once as keep, modify (with its delta) or drop (with why); the main task is not in it.

    A table is {"tasks": [{"task": "w1", "action": "modify", "delta": "use the new API"}, …]}.

    Exit 1: a drop survived; 75: the run is stopped.
    """
    if draft == bool(table):
        raise AgentboxError("give --table FILE or --draft", fix="see `agentbox redirect --help`", code=USAGE)
    home = Home.locate()
    run_id = existing_run(home, run)
    if draft:
        sys.stdout.write(json.dumps(control.draft(home, run_id, touches or []), indent=2) + "\n")
        return
    control.refuse_under_stop(home.run_dir(run_id))
    rows = parse(_read(table), control.in_flight(home, run_id))
    done = control.redirect(home, run_id, rows, values.duration(grace), values.duration(term))
    _tell(done, as_json)
    raise typer.Exit(NOT_PROVEN if any(stop.proof != "empty" for stop in done.dropped) else 0)


def _read(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read(TABLE_MAX)
        with open(path, encoding="utf-8") as file:
            return file.read(TABLE_MAX)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise AgentboxError(f"{path} cannot be read: {why}", fix="give a JSON or TOML file", code=USAGE) from None


def _tell(done: control.Redirected, as_json: bool) -> None:
    dropped = [{"task": stop.task_id, "proof": stop.proof} for stop in done.dropped]
    if as_json:
        found = {"kept": done.kept, "modified": done.delivered, "dropped": dropped, "branches": done.branches}
        found |= {"no_gate": done.no_gate, "problems": done.problems}
        sys.stdout.write(json.dumps(found) + "\n")
        return
    sys.stdout.write(f"kept: {', '.join(done.kept) or 'none'}\n" + ("" if done.delivered else "modified: none\n"))
    for task in done.delivered:
        gate = task not in done.no_gate
        more = "its delta waits for its next boundary" if gate else "no gate was seen: its delta may never be read"
        sys.stdout.write(f"modified: {task} ({more})\n")
    for stop in done.dropped:
        branch = done.branches.get(stop.task_id or "")
        sys.stdout.write(f"dropped: {stop.task_id} ({stop.proof}){f', branch {branch}' if branch else ''}\n")
    sys.stdout.writelines(f"problem: {line}\n" for line in done.problems)
