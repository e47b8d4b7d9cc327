"""`agentbox manifest` and `agentbox verify`: the record itself, and whether it is whole."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from sandbox.cli.selection import existing_run
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.manifest.verify import verify as verify_file

Run = Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")]


def manifest(run: Annotated[str, typer.Argument(metavar="[RUN]", help="All runs if not given.")] = "") -> None:
    """Print the record as it stands, one JSON object a line; give it to jq."""
    home = Home.locate()
    for run_id in [existing_run(home, run)] if run else home.runs():
        path = home.run_dir(run_id).manifest
        try:
            with open(path, "rb") as file:
                while block := file.read(1 << 16):
                    sys.stdout.buffer.write(block)
        except FileNotFoundError:
            if run:
                raise AgentboxError(f"run {run_id} has no record", fix=f"see `agentbox inspect {run_id}`") from None
        except OSError as error:
            raise AgentboxError(f"{path} cannot be read: {error.strerror}", fix=f"ls -l {path}") from None
    sys.stdout.flush()


def verify(
    run: Run,
    head: Annotated[str, typer.Option(metavar="DIGEST", help="A digest noted earlier that must be there.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Tell a rewritten or removed record from a torn end, and say what can't be told. Exit 0 whole, 1 broken."""
    home = Home.locate()
    run_id = existing_run(home, run)
    path = home.run_dir(run_id).manifest
    if not os.path.lexists(path):
        raise AgentboxError(f"run {run_id} has no record: {path} is missing", fix="it was removed", code=1)
    verdict = verify_file(path, head=head or None, run_id=run_id)
    if as_json:
        import json

        sys.stdout.write(json.dumps({"run_id": run_id, **asdict(verdict)}) + "\n")
    else:
        sys.stdout.write(f"{run_id}: {'whole' if verdict.whole else 'BROKEN'}\n")
        for name in ("problems", "torn", "unlocked"):
            for finding in getattr(verdict, name):
                sys.stdout.write(f"  {name}: {finding}\n")
        for line in verdict.cannot_tell:
            sys.stdout.write(f"  cannot tell: {line}\n")
        sys.stdout.write(f"  head: {verdict.head}\n")
    raise typer.Exit(0 if verdict.whole else 1)
