"""What `kill`, `abort` and `estop` share: which runs, what is printed, and the exit status."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from sandbox.cli.arguments import Parser, Value, output
from sandbox.cli.selection import known_runs, select_run
from sandbox.control.request import Act, carry_out, target_of
from sandbox.control.status import statuses
from sandbox.control.stop import Stop
from sandbox.control.targets import Target
from sandbox.errors import (
    NO_SUCH_RUN,
    NOT_PROVEN,
    NOT_RECORDED,
    PROVEN_EMPTY,
    USAGE,
    AgentboxError,
    ReaderGone,
    number_of,
    printable,
    warn,
)
from sandbox.kernel.procfs import Member
from sandbox.manifest.home import Home
from sandbox.manifest.ids import check_id
from sandbox.manifest.redact import command_line, redact_text

EXIT_STATUS = """exit status: 0 proven empty, 1 survivors or could not prove, 2 usage, 3 no such run, 4 proven empty
but the record could not be written."""


def add_options(parser: Parser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help="a run's id, or a unique prefix of it")
    add("--all", action="store_true", help="every run of this AGENTBOX_HOME that is alive")
    add("--task", metavar="ID", help="stop this task alone")
    add("--reason", action=Value, convert=redact_text, default="", metavar="TEXT", help="why, for the record")
    add("--json", action="store_true", help="print an array with one receipt a run")


def stop_runs(given: argparse.Namespace, act: Act, patience: float = 0.0) -> int:
    """Stop what was named; prints and returns the exit status."""
    home = Home.locate()
    missed = Missed()
    stops = carry_out(home, targets(given, home, missed), given.reason or "asked for", act, patience)
    nothing = "" if missed.unseen else f"nothing is alive of {home.path}\n"
    text = "".join(map(told, stops)) or nothing
    say(json.dumps([s.as_receipt() for s in stops]) + "\n" if given.json else text)
    for stop in stops:
        warn_of(stop)
    missed.warn()
    return exit_status([*map(_code, stops), *missed.codes()])


@dataclass
class Missed:
    """What was meant and could not be acted on. `unseen`: why not all runs could be looked for."""

    unseen: list[str] = field(default_factory=list)
    unnamed: list[AgentboxError] = field(default_factory=list)

    def warn(self) -> None:
        for why in self.unseen:
            warn(f"could not look for runs that have no record: {why}")
        for error in self.unnamed:
            warn(str(error))

    def codes(self) -> list[int]:
        told = [error.code if error.code in _GRAVITY else USAGE for error in self.unnamed]
        return [PROVEN_EMPTY, *(NOT_PROVEN for _ in self.unseen), *told]


def targets(given: argparse.Namespace, home: Home, missed: Missed) -> list[Target]:
    """What was named, or all that is alive. Raises AgentboxError where nothing of it is known."""
    runs = _selected(given, home, missed)
    task = check_id(given.task, "task id") if given.task is not None else None
    if task is not None:
        _check_task(home, runs, task)
    return [target_of(home, run, task) for run in runs]


def say(text: str) -> None:
    """An output that can't be written changes nothing of the stop, nor of the exit status."""
    try:
        output(text)
    except ReaderGone:
        return
    except AgentboxError as error:
        warn(str(error))


def _selected(given: argparse.Namespace, home: Home, missed: Missed) -> list[str]:
    """The runs that are meant. One wrong word among them holds back no stop of the others."""
    if given.all:
        if given.runs or given.task:
            raise AgentboxError("--all takes no RUN and no --task", fix="leave one of them out", code=USAGE)
        return [one.run_id for one in statuses(home, known_runs(home, missed.unseen)) if one.live]
    if not given.runs:
        raise AgentboxError("no run given", fix="name one (`agentbox ps` lists them), or --all", code=USAGE)
    found: dict[str, None] = {}
    for text in given.runs:
        try:
            found[select_run(home, text)] = None
        except AgentboxError as error:
            missed.unnamed.append(error)
    if not found:
        raise missed.unnamed[0]
    return list(found)


def _check_task(home: Home, runs: list[str], task: str) -> None:
    import os

    for run in runs:
        if not os.path.lexists(home.run_dir(run).task_order(task)):
            raise AgentboxError(
                f"no task {task} in run {run}", fix=f"`agentbox inspect {run}` lists them", code=NO_SUCH_RUN
            )


def _code(stop: Stop) -> int:
    if stop.proof != "empty":
        return NOT_PROVEN
    return PROVEN_EMPTY if stop.recorded else NOT_RECORDED


_GRAVITY = (PROVEN_EMPTY, NOT_RECORDED, NO_SUCH_RUN, USAGE, NOT_PROVEN)
"""Which exit status stands for all, the last of these that occurs."""


def exit_status(codes: Iterable[int]) -> int:
    """The one that stands for all of `codes`, of which there is at least one."""
    return max(codes, key=_GRAVITY.index)


def warn_of(stop: Stop) -> None:
    """What went wrong in a stop, and what was seen outside of its boxes."""
    for line in stop.warnings:
        warn(f"{stop.run_id}: {line}")
    for member in stop.escapees:
        warn(f"{stop.run_id}: carries the run's mark but lives outside of its boxes: {process_line(member)}")


def told(stop: Stop) -> str:
    """A stop as a person reads it: a line, and one for each process."""
    what = stop.run_id if stop.task_id is None else f"{stop.run_id} task {stop.task_id}"
    if stop.proof == "empty" and not stop.processes and not stop.unlisted:
        return f"{what}: empty, nothing was alive\n"
    if stop.proof == "empty":
        frozen = f"stopped at {stop.frozen_at}, " if stop.frozen_at else ""
        ended = "what it ended is not known" if stop.unlisted else ended_text(stop)
        lines = [f"{what}: {frozen}empty at {stop.empty_at}; {ended}"]
        return "\n".join(lines + [f"  {process_line(m)}" for m in stop.processes]) + "\n"
    word = "survivors" if stop.proof == "alive" else "could not prove it empty"
    return "\n".join([f"{what}: {word}", *(f"  {process_line(m)}" for m in stop.survivors)]) + "\n"


def ended_text(stop: Stop) -> str:
    """`ended 2 processes`, and how many of those that it met were gone before it had to."""
    gone = stop.gone_in_grace
    ended = f"ended {number_of(len(stop.processes) - gone, 'process')}"
    return f"{ended}, {gone} had gone by the end of the grace" if gone else ended


def process_line(member: Member) -> str:
    """A process in one line: pid, state, and what it is."""
    text = command_line(member.argv, member.comm or "unreadable")
    shown = text if len(text) <= 200 else text[:199] + "…"
    return printable(f"{member.pid} {member.state or '?'} {shown}")
