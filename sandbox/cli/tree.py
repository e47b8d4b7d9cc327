"""`agentbox tree`: the processes of a run, box by box, each below its parent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from sandbox.boxes.base import Backend, Box
from sandbox.cli.arguments import output
from sandbox.cli.selection import select_run
from sandbox.cli.table import bytes_text, seconds_text, shorten
from sandbox.control.status import Status, status
from sandbox.errors import printable
from sandbox.kernel.procfs import Member
from sandbox.kernel.usage import memory_of
from sandbox.manifest.home import Home
from sandbox.manifest.redact import command_line

SECONDS = 2.0


def tree(run: Annotated[str, typer.Argument(metavar="RUN", help="An id or a unique prefix.")]) -> None:
    """Show what `kill` would end."""
    home = Home.locate()
    one = status(home, select_run(home, run))
    output("\n".join(_lines(one)) + "\n")


def _lines(one: Status) -> Iterator[str]:
    yield f"{one.run_id} {one.state}" + (f" ({printable(one.why)})" if one.why else "")
    for backend, parent in one.boxes:
        for box in [b for b in backend.list() if b.run_id == one.run_id and b.task_id] or [parent]:
            yield f"  {box.task_id or box.run_id} [{backend.name}] {box.id}"
            yield from _processes(backend, box)


def _processes(backend: Backend, box: Box) -> Iterator[str]:
    members = backend.members(box, SECONDS)
    if members is None:
        yield "    could not tell"
        return
    by_pid = {m.pid: m for m in members}
    children: dict[int | None, list[Member]] = {}
    for member in members:
        children.setdefault(member.ppid if member.ppid in by_pid else None, []).append(member)
    yield from _below(children, None, "    ", set())


def _below(children: dict[int | None, list[Member]], pid: int | None, indent: str, seen: set[int]) -> Iterator[str]:
    stack = [(member, indent) for member in reversed(children.get(pid, []))]
    while stack:
        member, indent = stack.pop()
        if member.pid in seen:
            continue
        seen.add(member.pid)
        text = shorten(printable(command_line(member.argv, member.comm)), 100)
        yield f"{indent}{member.pid} {member.state or '?'} {_facts(member)} {text}"
        stack += [(child, indent + "  ") for child in reversed(children.get(member.pid, []))]


def _facts(member: Member) -> str:
    return f"{seconds_text(member.age)} {bytes_text(memory_of(member.pid, member.start_ticks))}"
