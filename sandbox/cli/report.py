"""`agentbox report`: where a run stopped, as text, JSON or a page."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.cli.selection import select_run
from sandbox.errors import USAGE, AgentboxError
from sandbox.manifest.home import Home
from sandbox.report.gather import gather
from sandbox.report.model import plain


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
    html: Annotated[str, typer.Option("--html", metavar="FILE", help="Write a page; - is stdout.")] = "",
) -> None:
    """Tell what was asked and by whom, when it stopped, in which calls, what was saved, and what is not known.

    Calls are told by the workers' own marks, everything else by the record, the kernel and git.
    """
    if as_json and html == "-":
        raise AgentboxError("--json and --html - both want stdout", fix="name a file for the page", code=USAGE)
    home = Home.locate()
    found = gather(home, select_run(home, run), time.time())
    if html:
        from sandbox.report.page import page

        _write(html, page(found))
    if as_json:
        output(json.dumps(plain(found)) + "\n")
    elif html != "-":
        from sandbox.report.text import told

        output(told(found))


def _write(path: str, text: str) -> None:
    if path == "-":
        output(text.encode())
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fix = "name a file in a directory that you can write to"
        raise AgentboxError(f"{os.path.abspath(path)} cannot be written: {error.strerror}", fix=fix) from None
