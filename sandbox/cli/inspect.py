"""`agentbox inspect`: all that the record and the kernel tell of a run, as one JSON object."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from sandbox.cli.arguments import output
from sandbox.cli.ps import summary
from sandbox.cli.selection import select_run
from sandbox.control.status import Status, launcher_alive, status
from sandbox.control.stop import PHOTOGRAPH_SECONDS
from sandbox.manifest.home import Home
from sandbox.manifest.redact import described


def inspect(run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")]) -> None:
    """Print an object: the summary of `ps`, then tasks, boxes with their processes, order, receipts."""
    home = Home.locate()
    one = status(home, select_run(home, run))
    output(json.dumps(_detail(one), indent=2) + "\n")


def _detail(one: Status) -> dict[str, Any]:
    run = one.run
    return {
        **summary(one),
        "cwd": run.cwd,
        "parent_run": run.parent_run,
        "main_task": run.main_task,
        "detached": run.detached,
        "on_exit": run.on_exit,
        "timeout": run.timeout,
        "reason": one.order.reason,
        "order_trusted": one.order.trusted,
        "oom_kills": one.usage.oom_kills,
        "task_list": [{**asdict(t), "launcher_alive": launcher_alive(t)} for t in run.tasks.values()],
        "boxes": [_box(backend, box) for backend, box in one.boxes],
        "receipts": run.receipts,
        "notes": run.notes,
        "ended": run.ended,
    }


def _box(backend: Any, box: Any) -> dict[str, Any]:
    members = backend.members(box, PHOTOGRAPH_SECONDS)
    return {
        **box.as_record(),
        "populated": backend.populated(box),
        "usage": asdict(backend.usage(box)),
        "processes": None if members is None else [described(member.as_dict()) for member in members],
    }
