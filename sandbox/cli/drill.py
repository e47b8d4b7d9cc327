"""`agentbox drill`: try the stop on a throwaway fleet, and print the score."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from sandbox.cli.arguments import output
from sandbox.cli.table import table as columns
from sandbox.errors import USAGE, AgentboxError, number_of, printable, warn
from sandbox.manifest.home import Home

if TYPE_CHECKING:
    from sandbox.drill.fleet import Tell
    from sandbox.drill.score import Score

HEADER = ("SCORE", "WHAT", "MEASURED", "PASS", "INVESTIGATE", "DETAIL")
PASSED, NOT_PASSED = 0, 1


def drill(
    workers: Annotated[int, typer.Option(metavar="N", help="How many workers.")] = 16,
    backend: Annotated[str, typer.Option(metavar="B", help="auto, cgroup, systemd or docker.")] = "auto",
    keep: Annotated[bool, typer.Option("--keep", help="Leave the repository, the worktrees and the record.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write the score as a page, too.")] = "",
    thresholds: Annotated[str, typer.Option(metavar="FILE", help="TOML: other thresholds, another pace.")] = "",
    sabotage: Annotated[str, typer.Option(metavar="NAME", help="Let the fleet do one thing wrong.")] = "",
) -> None:
    """Start a throwaway fleet, pause it, redirect it, abort it, and say what each was worth.

    Exit 0 if every row passes, 1 if not, 2 if the drill could not be held.
    """
    from sandbox.boxes.registry import choose
    from sandbox.drill.fleet import drill as hold
    from sandbox.drill.table import load

    home = Home.locate()
    table = load(thresholds or None)
    chosen = backend if backend == "docker" else choose(backend, home.path).name
    file = _open(html)
    with _progress() as tell:
        score = hold(home, chosen, workers, table, sabotage or None, keep, tell)
    output(json.dumps(score.as_dict()) + "\n" if as_json else _told(score))
    if file is not None:
        _write(file, score)
    raise typer.Exit(PASSED if score.passed else NOT_PASSED)


def _open(path: str) -> TextIO | None:
    """Opened first: a drill of a minute is not to end at a file that can't be written."""
    try:
        return open(path, "w", encoding="utf-8") if path else None
    except OSError as error:
        raise _unwritable(path, error) from None


def _write(file: TextIO, score: Score) -> None:
    from sandbox.drill.page import page

    try:
        with file:
            file.write(page(score))
    except OSError as error:
        raise _unwritable(file.name, error) from None


def _unwritable(path: str, error: OSError) -> AgentboxError:
    return AgentboxError(f"{path} cannot be written: {error.strerror}", fix="name another file", code=USAGE)


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal, a line a step elsewhere; on stderr."""
    from sandbox.drill.fleet import STEPS

    if not os.isatty(2):
        yield lambda step: warn(f"drill: {step}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("drill: {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(STEPS[0], total=len(STEPS))
        yield lambda step: bar.update(task, description=step, completed=STEPS.index(step))


def _told(score: Score) -> str:
    lines = [
        (row.verdict, row.title, row.shown, f"{row.passes:g}", f"{row.investigate:g}", row.detail) for row in score.rows
    ]
    text = columns(HEADER, lines)
    text += "".join(printable(f"not undone: {line}") + "\n" for line in score.problems)
    text += printable(f"kept: {score.kept}, run {score.run_id}") + "\n" if score.kept else ""
    word = "every row passes" if score.passed else "not every row passes"
    return f"{text}{word}: {number_of(score.workers, 'worker')}, backend {score.backend}, {score.seconds:.1f} s\n"
