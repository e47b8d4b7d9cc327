"""`agentbox watch`: enforce an emergency stop that was made by hand, and orders that were written by hand."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from sandbox.boxes.where import own_box
from sandbox.cli import values
from sandbox.control.ladder import TERM, abort
from sandbox.control.request import Act
from sandbox.control.stop import kill
from sandbox.control.watch import Watch
from sandbox.errors import USAGE, AgentboxError
from sandbox.manifest.home import Home
from sandbox.reconcile.log import logger


def watch(
    once: Annotated[bool, typer.Option("--once", help="Look once, and exit as estop does.")] = False,
    until_lifted: Annotated[
        bool, typer.Option("--until-lifted", help="End when the emergency stop is off; at once if it is not on.")
    ] = False,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="For a STOP written by hand: abort with this grace, instead of kill.")
    ] = "0s",
) -> None:
    """Watch AGENTBOX_HOME until SIGTERM.

    The file EMERGENCY_STOP, however it came there, ends all runs. `STOP` on the first line of a run's ctl/control
    (or ctl/tasks/TASK) ends that run (or task).
    """
    if once and until_lifted:
        raise AgentboxError("--once and --until-lifted exclude each other", fix="leave one out", code=USAGE)
    home = Home.locate()
    log = logger()
    seconds = values.duration(grace)
    act: Act = (lambda target, stop: abort(target, stop, seconds, TERM)) if seconds else kill
    one = Watch(home, act, log, until_lifted=until_lifted)
    if own := own_box():
        log.warning(f"this watch is inside of run {own.run_id}, and ends with it")
    if once:
        raise typer.Exit(one.once())
    ended = _on_signal()
    log.info(f"watching {home.path}")
    one.run(ended)
    log.info("ended")


def _on_signal() -> int:
    """A descriptor that can be read once SIGTERM, SIGINT or SIGHUP has come (signal.set_wakeup_fd)."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader
