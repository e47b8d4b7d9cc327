"""`agentbox checkpoint`: commit what a task's worktree holds now."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.errors import AgentboxError, printable
from sandbox.manifest.ids import is_id
from sandbox.worktree.checkpoint import Checkpoint
from sandbox.worktree.checkpoint import checkpoint as commit


def checkpoint(
    step: Annotated[
        list[str] | None, typer.Argument(metavar="[STEP]...", help="What was done, in a few words.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Commit all changes of this worktree as `wip: TASK STEP`, past hooks and signing; nothing to commit is no error.

    New files above 50 MiB and ignored ones are left where they are. Exit 0 also if there was nothing to do.
    """
    task = os.environ.get("AGENTBOX_TASK_ID", "")
    done = commit(_here(), " ".join(step or []), task if is_id(task) else None)
    output((json.dumps(asdict(done)) if as_json else _told(done)) + "\n")


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        raise AgentboxError("the working directory was deleted", fix="cd to the worktree first") from None


def _told(done: Checkpoint) -> str:
    lines = ["nothing to commit"]
    if done.commit:
        lines = [f"{done.commit[:12]} {done.message} ({(done.ref or '').removeprefix('refs/heads/')})"]
    lines += [f"note: {done.note}"] if done.note else []
    lines += [f"too large, left: {name}" for name in done.left]
    lines += [f"removed a lock that a killed git left: {name}" for name in done.unlocked]
    lines += [f"{done.ignored} ignored entries left"] if done.ignored and not done.commit else []
    return "\n".join(map(printable, lines))
