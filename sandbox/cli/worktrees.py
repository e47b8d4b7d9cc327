"""`agentbox worktrees`: the worktrees of a run's tasks, and what of them is not saved yet."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.cli.selection import existing_run
from sandbox.cli.table import table
from sandbox.control.status import load
from sandbox.manifest.home import Home
from sandbox.worktree.state import State, look

HEADER = ("TASK", "STATE", "BRANCH", "AHEAD", "UNPUSHED", "STASH", "PATH")


def worktrees(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print an array.")] = False,
) -> None:
    """List a run's worktrees: clean or dirty, with a checkpoint on top (wip), abandoned, commits, stashes."""
    home = Home.locate()
    run_id = existing_run(home, run)
    run_of, _ = load(home, run_id)
    found = [
        look(run_id, task.task_id, task.worktree, task.branch, task.repository, task.base)
        for task in run_of.tasks.values()
        if task.worktree and task.branch
    ]
    # A start that failed has taken its worktree back.
    found = [one for one in found if run_of.tasks[one.task_id].state != "failed" or one.exists or one.head]
    if as_json:
        output(json.dumps([one.as_dict() for one in found]) + "\n")
    else:
        output(table(HEADER, [_row(one) for one in found]))
        output("".join(f"{one.task_id}: {one.why}\n" for one in found if one.why and one.exists is not False))


def _row(one: State) -> tuple[str, ...]:
    stash = None if one.stashes is None else len(one.stashes)
    numbers = ["?" if number is None else str(number) for number in (one.ahead, one.unpushed, stash)]
    return (one.task_id, ",".join(words(one)), one.on or f"{one.branch} (not checked out)", *numbers, one.path)


def words(one: State) -> list[str]:
    """What a worktree is, in words: one of clean, dirty, gone, unknown, and what else holds."""
    first = "gone" if one.exists is False else {None: "unknown", True: "dirty", False: "clean"}[one.dirty]
    more = {"wip": one.wip, "abandoned": one.abandoned, one.operation or "": one.operation is not None}
    half = ["half-made"] if one.finished_making is False else []
    return [first, *half, *(name for name, holds in more.items() if holds)]
