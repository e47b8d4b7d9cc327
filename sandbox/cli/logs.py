"""`agentbox logs`: the output of a detached task, as it was written, byte for byte."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.cli.selection import existing_run
from sandbox.control.status import load, status
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.manifest.ids import check_id
from sandbox.manifest.lines import open_regular

LOOK_EVERY = 0.1
BLOCK = 1 << 16


def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")],
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="The main task if not given.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the task has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, metavar="N", help="Only the last N lines.")] = None,
) -> None:
    """Print a task's log; foreground tasks have none, their output went where the caller's did."""
    home = Home.locate()
    run_id = existing_run(home, run)
    task_id = load(home, run_id)[0].main_task if task is None else check_id(task, "task id")
    path = home.run_dir(run_id).out(task_id)
    try:
        fd = open_regular(path, os.O_RDONLY)
    except OSError as error:
        raise AgentboxError(
            f"no log of task {task_id} of run {run_id}: {error.strerror}", fix="only detached tasks (-d) have one"
        ) from None
    try:
        os.lseek(fd, 0 if tail is None else _start(fd, tail), os.SEEK_SET)
        _copy(fd)
        while follow and _lives(home, run_id, task_id):
            time.sleep(LOOK_EVERY)
            _copy(fd)
        _copy(fd)
    finally:
        os.close(fd)


def _lives(home: Home, run_id: str, task_id: str) -> bool:
    one = status(home, run_id)
    task = one.run.tasks.get(task_id)
    return one.live and (task is None or task.state in ("intent", "started"))


def _copy(fd: int) -> None:
    while block := os.read(fd, BLOCK):
        output(block)


def _start(fd: int, lines: int) -> int:
    """The offset at which the last `lines` lines begin, read from the end."""
    size = end = os.fstat(fd).st_size
    left = lines + (1 if size and os.pread(fd, 1, size - 1) == b"\n" else 0)
    while end > 0 and left > 0:
        start = max(0, end - BLOCK)
        block = os.pread(fd, end - start, start)
        for at in range(len(block) - 1, -1, -1):
            if block[at] == 10:
                left -= 1
                if left == 0:
                    return start + at + 1
        end = start
    return 0 if lines else size
