"""`agentbox top`: the fleet live in the terminal."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from typing import Annotated

import typer

from sandbox.cli import values
from sandbox.cli.arguments import output
from sandbox.errors import USAGE, AgentboxError
from sandbox.manifest.home import Home
from sandbox.top.sample import Sampler

SHORT = 0.2
"""Seconds between the two looks of --once that a share of the processor takes."""


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one frame.")] = False,
    show_all: Annotated[bool, typer.Option("-a", "--all", help="Ended runs too.")] = False,
    interval: Annotated[str, typer.Option(metavar="TIME", help="Between two looks.")] = "1s",
) -> None:
    """Show runs and tasks: state, boundary, processes, share of a processor, memory (~: added up), age, branch.

    Keys act on the selected line (arrows, j, k): p pause, r resume, A twice abort, K twice kill; E twice is the
    emergency stop; q leaves.
    """
    seconds = values.duration(interval)
    if not 0.1 <= seconds <= 3600:
        raise AgentboxError(f"no such interval: {interval}", fix="give 0.1s to 1h", code=USAGE)
    home = Home.locate()
    sampler = Sampler(home, show_all)
    if once:
        sampler.sample()
        time.sleep(SHORT)
        output(_plain(sampler))
        return
    if not (os.isatty(0) and os.isatty(1)) or os.environ.get("TERM", "dumb") == "dumb":
        raise AgentboxError("top needs a terminal", fix="`agentbox top --once` prints one frame anywhere", code=USAGE)
    from sandbox.top.loop import Top

    raise typer.Exit(Top(home, sampler, seconds).run())


def _plain(sampler: Sampler) -> str:
    from rich.console import Console

    from sandbox.top.view import lines

    width = shutil.get_terminal_size((80, 24)).columns
    colours = sys.stdout.isatty()
    console = Console(file=io.StringIO(), width=width, force_terminal=colours, highlight=False, markup=False)
    for line in lines(sampler.sample(), None, width, None):
        line.rstrip()
        console.print(line)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]
