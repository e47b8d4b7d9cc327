"""`agentbox logs`: the output of a detached task, as it was written, byte for byte."""

from __future__ import annotations

import errno
import os
import time
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.cli.selection import existing_run
from sandbox.control.status import load, status
from sandbox.errors import AgentboxError, warn
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
        at = _copy(fd, 0 if tail is None else _start(fd, tail))
        while follow and _lives(home, run_id, task_id):
            time.sleep(LOOK_EVERY)
            at = _copy(fd, at)
        _copy(fd, at)
    finally:
        os.close(fd)


def _lives(home: Home, run_id: str, task_id: str) -> bool:
    one = status(home, run_id)
    task = one.run.tasks.get(task_id)
    return one.live and (task is None or task.state in ("intent", "started"))


def _copy(fd: int, at: int) -> int:
    """Print from the offset `at` on; gives the one to go on from. What was dropped is told on stderr, in its place."""
    size = os.fstat(fd).st_size
    if size < at:
        warn("the output before this was dropped")
        at = 0
    while block := os.pread(fd, BLOCK, at):
        # Asked after the read: a hole that was made meanwhile has been read as zeros.
        there = _data(fd, at)
        if there > at:
            warn(f"{there - at} bytes of output were dropped here (--output-limit)")
            at = there
            continue
        output(block)
        at += len(block)
    return at


def _data(fd: int, at: int) -> int:
    """The first offset from `at` on that is in no hole; the end if there is none (lseek(2))."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(fd).st_size if error.errno == errno.ENXIO else at


def _start(fd: int, lines: int) -> int:
    """The offset at which the last `lines` lines begin, read from the end; a hole is not read over."""
    size = end = os.fstat(fd).st_size
    first, floor = _data(fd, 0), 0
    left = lines + (1 if size and os.pread(fd, 1, size - 1) == b"\n" else 0)
    while end > floor and left > 0:
        start = max(floor, end - BLOCK)
        if (there := _data(fd, start)) > start:
            start = floor = min(there, end)
        block = os.pread(fd, end - start, start)
        for at in range(len(block) - 1, -1, -1):
            if block[at] == 10:
                left -= 1
                if left == 0:
                    return start + at + 1
        end = start
    if not lines:
        return size
    return 0 if floor == first else floor  # from the begin on, what was dropped is told
