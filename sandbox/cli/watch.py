"""`agentbox watch`: enforce an emergency stop that was made by hand, and orders that were written by hand."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sandbox.boxes.where import own_box
from sandbox.cli import values
from sandbox.control.ladder import TERM, abort
from sandbox.control.request import Act
from sandbox.control.stop import kill
from sandbox.errors import USAGE, AgentboxError
from sandbox.manifest.home import Home

if TYPE_CHECKING:
    from loguru import Record

_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""Of sd-daemon(3), for lines that go to the journal."""


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
    log_to_stderr()
    from loguru import logger

    from sandbox.control.watch import Watch

    seconds = values.duration(grace)
    act: Act = (lambda target, stop: abort(target, stop, seconds, TERM)) if seconds else kill
    one = Watch(home, act, until_lifted=until_lifted)
    if own := own_box():
        logger.warning(f"this watch is inside of run {own.run_id}, and ends with it")
    if once:
        raise typer.Exit(one.once())
    ended = _on_signal()
    logger.info(f"watching {home.path}")
    one.run(ended)
    logger.info("ended")


def _on_signal() -> int:
    """A descriptor that can be read once SIGTERM, SIGINT or SIGHUP has come (signal.set_wakeup_fd)."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


def log_to_stderr() -> None:
    """To a terminal or a file with the time; to the journal with the priority, since it keeps the time."""
    from loguru import logger

    def line(record: Record) -> str:
        if os.environ.get("JOURNAL_STREAM"):
            # loguru takes an unescaped <...> for a colour
            return f"\\<{_PRIORITY.get(record['level'].name, 6)}>{{message}}\n"
        return "{time:YYYY-MM-DDTHH:mm:ss.SSSSSSZ} {level: <7} {message}\n"

    logger.remove()
    logger.add(sys.stderr, format=line, level="INFO", colorize=False, backtrace=False, diagnose=False)
