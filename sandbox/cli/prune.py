"""`agentbox prune`: show what ended runs left behind, and remove it when told."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from sandbox.cli.table import table
from sandbox.cli.values import duration
from sandbox.errors import USAGE, AgentboxError, printable
from sandbox.manifest.home import Home
from sandbox.reconcile.prune import OLD_SECONDS, Leftovers, leftovers, remove, secured

HEADER = ("WHAT", "RUN", "WHERE", "WHY")
DONE, NOT_ALL, INCOMPLETE = 0, 1, 2


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show, and remove nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="How old an ended run's record must be (168h).")
    ] = "",
    drop_ignored: Annotated[
        bool, typer.Option("--drop-ignored", help="Files that git ignores are nothing to keep a worktree for.")
    ] = False,
) -> None:
    """Remove what ended runs left: empty cgroups, stopped containers, worktrees without work in them, old records.

    Nothing that is alive goes, and nothing that could lose work: a worktree stays, and is named with the reason.

    Exit 0 all removed (or nothing to do), 1 something could not be removed, 2 could not look everywhere.
    """
    home = Home.locate()
    found = leftovers(home, duration(older_than) if older_than else OLD_SECONDS, drop_ignored)
    if not as_json:
        sys.stdout.write(_told(found))
        sys.stdout.flush()
    wanted = bool(found.found) and not dry_run and _agreed(yes)
    failed: list[str] = []
    removed = []
    for one in found.found if wanted else ():
        if why := remove(home, one):
            failed.append(f"{one.what} {one.where}: {why}")
        else:
            removed.append(one)
    did = [line for one in removed for line in one.did]
    if wanted or (yes and not dry_run):
        did += secured(found)
    if as_json:
        rest = {"removed": [one.as_dict() for one in removed], "failed": failed, "did": did}
        shown = {"leftovers": [one.as_dict() for one in found.found], "kept": found.kept, "not_asked": found.not_asked}
        sys.stdout.write(json.dumps({**shown, **rest}) + "\n")
    elif wanted or did:
        sys.stdout.write("".join(printable(line) + "\n" for line in did))
        sys.stdout.write("".join(printable(f"not removed: {line}") + "\n" for line in failed))
        sys.stdout.write(f"removed {len(removed)}\n")
    raise typer.Exit(NOT_ALL if failed else INCOMPLETE if found.not_asked else DONE)


def _told(found: Leftovers) -> str:
    rows = [(one.what, one.run_id, one.where, one.why) for one in found.found]
    text = table(HEADER, rows) if rows else "nothing to remove\n"
    for line in found.kept:
        text += printable(f"kept: {line}") + "\n"
    for line in found.not_asked:
        text += printable(f"not asked: {line}") + "\n"
    return text


def _agreed(yes: bool) -> bool:
    if yes:
        return True
    if not (os.isatty(0) and os.isatty(2)):
        raise AgentboxError("nobody to ask whether to remove this", fix="give --yes, or --dry-run to look", code=USAGE)
    return typer.confirm("remove all of this?", default=False, err=True)
