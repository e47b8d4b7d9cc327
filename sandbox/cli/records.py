"""`agentbox manifest` and `agentbox verify`: the record itself, and whether it is whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.cli.selection import existing_run
from sandbox.errors import USAGE, AgentboxError, printable
from sandbox.manifest.home import Home
from sandbox.manifest.lines import open_regular
from sandbox.manifest.verify import Verdict
from sandbox.manifest.verify import verify as verify_file

Run = Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")]


def manifest(run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="All if not given.")] = None) -> None:
    """Print the record as it stands, one JSON object a line; give it to jq."""
    home = Home.locate()
    for run_id in home.runs() if run is None else [existing_run(home, run)]:
        path = home.run_dir(run_id).manifest
        try:
            fd = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            if run is not None:
                raise AgentboxError(f"run {run_id} has no record", fix=f"see `agentbox inspect {run_id}`") from None
            continue
        except OSError as error:
            raise AgentboxError(f"{path} cannot be read: {error.strerror}", fix=f"ls -l {path}") from None
        try:
            while block := os.read(fd, 1 << 16):
                output(block)
        finally:
            os.close(fd)


def verify(
    run: Run,
    head: Annotated[str, typer.Option(metavar="DIGEST", help="A digest noted earlier that must be there.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Tell a rewritten or removed record from a torn end, and say what can't be told. Exit 0 whole, 1 broken."""
    if head and not re.fullmatch(r"[0-9a-f]{64}", head):
        fix = "give the 64 hexadecimal digits that `agentbox verify` printed"
        raise AgentboxError(f"--head {printable(head)} is no digest", fix=fix, code=USAGE)
    home = Home.locate()
    run_id = existing_run(home, run)
    path = home.run_dir(run_id).manifest
    if not os.path.lexists(path):
        raise AgentboxError(f"run {run_id} has no record: {path} is missing", fix="it was removed", code=1)
    verdict = verify_file(path, head=head or None, run_id=run_id)
    if as_json:
        import json

        output(json.dumps({"run_id": run_id, **asdict(verdict)}) + "\n")
    else:
        output("\n".join([f"{run_id}: {'whole' if verdict.whole else 'BROKEN'}", *_told(verdict)]) + "\n")
    raise typer.Exit(0 if verdict.whole else 1)


def _told(verdict: Verdict) -> Iterator[str]:
    for name in ("problems", "torn", "unlocked"):
        for finding in getattr(verdict, name):
            yield f"  {name}: byte {finding.offset}: {printable(finding.what)}"
    for line in verdict.cannot_tell:
        yield f"  cannot tell: {line}"
    yield f"  head: {verdict.head}"
