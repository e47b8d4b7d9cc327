"""`agentbox wait`: wait until a run has ended, and exit as it did."""

from __future__ import annotations

import select
import time
from typing import Annotated

import typer

from sandbox.cli.selection import select_run
from sandbox.control.status import Status, launcher_identity, status
from sandbox.errors import AGENTBOX_FAILED, warn
from sandbox.manifest.home import Home

KILLED = 137
LOOK_EVERY = 1.0
RECEIPT_SECONDS = 2.0
"""How long after a stopped run has vanished the one who stops it may take to write the receipt."""


def wait(run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")]) -> None:
    """Wait for a run to end, and exit with the main command's own status, 128+N for signal N.

    137 for a run that was killed, 143 for one that was aborted and left in time.

    125 where how it ended is not known (lost).
    """
    home = Home.locate()
    run_id = select_run(home, run)
    while (one := status(home, run_id)).live and not _over(one):
        _wait_a_while(one)
    deadline = time.monotonic() + RECEIPT_SECONDS
    while one.state == "lost" and one.order.word == "STOP" and time.monotonic() < deadline:
        time.sleep(0.05)
        one = status(home, run_id)
    raise typer.Exit(code_of(one))


def _over(one: Status) -> bool:
    """An end that is recorded counts, also while something that was to be left behind lives on."""
    return one.run.ended is not None


def _wait_a_while(one: Status) -> None:
    """Until a launcher ends, or the box is empty, or a second has passed: whichever is first."""
    identities = [launcher_identity(task) for task in one.run.tasks.values()]
    fds = [identity.pidfd() for identity in identities if identity]
    poll = select.poll()
    for fd in fds:
        if fd is not None:
            poll.register(fd, select.POLLIN)
    try:
        if any(fd is not None for fd in fds):
            poll.poll(LOOK_EVERY * 1000)
        elif one.boxes:
            backend, box = one.boxes[0]
            backend.wait_empty(box, time.monotonic() + LOOK_EVERY)
        else:
            time.sleep(0.05)
    finally:
        import os

        for fd in fds:
            if fd is not None:
                os.close(fd)


def code_of(one: Status) -> int:
    """The run's exit status; never 0 for a run that was stopped."""
    ended = one.run.ended or {}
    code = ended.get("code")
    if isinstance(code, int) and not isinstance(code, bool):
        if one.state == "not started":
            warn(f"run {one.run_id} never started: {one.why}")
        return code if 0 <= code <= 255 else AGENTBOX_FAILED
    if one.state == "stopped":
        return KILLED
    warn(f"how run {one.run_id} ended is not known: {one.state} ({one.why})")
    return AGENTBOX_FAILED
