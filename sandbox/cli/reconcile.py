"""`agentbox reconcile`: find what is alive and should not be, and with --kill end what is proven."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sandbox.cli.arguments import Parser
from sandbox.cli.selection import select_run
from sandbox.cli.table import table
from sandbox.errors import NO_SUCH_RUN, AgentboxError, number_of, printable
from sandbox.manifest.home import Home
from sandbox.manifest.ids import is_id
from sandbox.reconcile import log, metrics
from sandbox.reconcile.act import Done, end_findings
from sandbox.reconcile.findings import GRAVITY, KEPT, Finding, Severity, at_least
from sandbox.reconcile.look import Look, look
from sandbox.reconcile.survey import Survey, describe

CLEAN, FINDINGS, INCOMPLETE = 0, 1, 2
HEADER = ("SEVERITY", "KIND", "RUN", "TASK", "SINCE", "WHAT", "COMMAND")
PIDS = 5
"""So many processes are named for each reason why they could not be looked into."""


@dataclass
class _Given:
    kill: bool
    as_json: bool
    run_id: str | None
    metrics: str
    least: Severity


USAGE = "agentbox reconcile [--kill] [--run RUN] [--json] [--min-severity SEVERITY] [--metrics FILE]"
ABOUT = """Compare the records with the kernel, the units, the engine and the process table; read-only without --kill.

exit status: 0 clean (with --kill: after it), 1 findings (of --min-severity or graver), 2 could not look everywhere,
which says nothing of the rest."""


def main(argv: Sequence[str]) -> int:
    """Parsed without Typer, which takes longer to load than all of a small machine takes to be looked at."""
    parser = Parser("reconcile", USAGE, ABOUT)
    add = parser.add_argument
    add("--kill", action="store_true", help="end what is proven ours and unwanted")
    add("--json", action="store_true", help="print an object")
    add("--run", default="", metavar="RUN", help="look at this run alone")
    add("--metrics", default="", metavar="FILE", help="write Prometheus text, of findings of every severity")
    about = "info, warning or security: findings below it are neither shown nor counted for exit 1 (default info)"
    add("--min-severity", default="info", metavar="SEVERITY", choices=GRAVITY, help=about)
    given = parser.parse_args(list(argv))
    # All that is made here is kept until the end, and is a lot: looking through it for garbage finds none.
    gc.disable()
    home = Home.locate()
    run_id = _selected(home, given.run)
    return _reconcile(home, _Given(given.kill, given.json, run_id, given.metrics, given.min_severity))


def _reconcile(home: Home, given: _Given) -> int:
    began = time.monotonic()
    first = look(home, given.run_id)
    done, last = end_findings(home, first, given.run_id) if given.kill else ([], first)
    shown = replace(first, findings=at_least(given.least, first.findings))
    left = at_least(given.least, last.findings)
    _print(given, shown, done, left if given.kill else [])
    _log(given, shown, done)
    if given.metrics:
        _write_metrics(given.metrics, last, time.monotonic() - began)
    # A stop of ours that failed still looks as if it were being carried out: by this very process.
    unwanted = left or not all(one.ok for one in done)
    return INCOMPLETE if last.survey.not_asked else FINDINGS if unwanted else CLEAN


def _selected(home: Home, text: str) -> str | None:
    """The run's id; an exact one also where only processes are left that name it."""
    if not text:
        return None
    try:
        return select_run(home, text)
    except AgentboxError as error:
        if error.code == NO_SUCH_RUN and is_id(text):
            return text
        raise


def _print(given: _Given, seen: Look, done: list[Done], left: list[Finding]) -> None:
    if given.as_json:
        found = {"findings": [one.as_dict() for one in seen.findings], **describe(seen.survey)}
        if given.kill:
            found["ended"] = [one.as_dict() for one in done]
        sys.stdout.write(json.dumps(found) + "\n")
    elif not log.in_journal(1):
        sys.stdout.write(_told(given, seen, done, left))


def _told(given: _Given, seen: Look, done: list[Done], left: list[Finding]) -> str:
    """`left`: what --kill leaves."""
    text = table(HEADER, [_row(one) for one in seen.findings]) if seen.findings else ""
    if not (text or done or left or seen.survey.not_asked):
        text = "clean\n" if given.least == "info" else f"nothing of severity {given.least} or above\n"
    for one in done:
        who = f"{one.finding.kind} of run {one.finding.run_id}"
        text += printable(f"{who}: {'' if one.ok else 'NOT ENDED: '}{one.what}") + "\n"
    for line in _left(seen, done, left):
        text += printable(line) + "\n"
    for missing in seen.survey.not_asked:
        text += printable(f"not asked: {missing.observer}: {missing.why}") + "\n"
    if seen.survey.blind:
        text += f"{number_of(seen.survey.blind, 'process')} could not be looked into: {_unread(seen.survey)}\n"
    return text


def _left(seen: Look, done: list[Done], left: list[Finding]) -> Iterator[str]:
    """A line for each finding that --kill leaves, with why; one that it could not end is told already."""
    failed = {one.finding.identity for one in done if not one.ok}
    ended = {one.finding.identity for one in done if one.ok}
    known = {one.identity for one in seen.findings}
    for one in (one for one in left if one.identity not in failed):
        again = "it is there again" if one.identity in ended else "two looks did not agree on it"
        why = again if one.remedy else one.kept or KEPT.get(one.kind, "not proven")
        what = "" if one.identity in known else f"{one.what}: "
        where = f" of run {one.run_id}" if one.run_id else ""
        yield "; ".join(filter(None, [f"{one.kind}{where}: {what}left: {why}", one.way_out]))


def _unread(seen: Survey) -> str:
    """Which processes, and why; of many, the first of each reason."""
    reasons: dict[str, list[str]] = {}
    for pid, why in sorted(seen.unread.items()):
        reasons.setdefault(why, []).append(str(pid))
    parts = []
    for why, pids in reasons.items():
        more = f" and {len(pids) - PIDS} more" if len(pids) > PIDS else ""
        parts.append(f"pid {', '.join(pids[:PIDS])}{more}: {why}")
    parts += [f"{seen.hidden} that /proc hides (hidepid)"] if seen.hidden else []
    return "; ".join(parts)


def _row(one: Finding) -> tuple[str, ...]:
    since = (one.since or "?")[:19].replace("T", " ")
    return (one.severity, one.kind, one.run_id or "-", one.task_id or "-", since, one.what, one.command)


def _log(given: _Given, seen: Look, done: list[Done]) -> None:
    """What could not be asked, and what was done unless the table's text has told it; to the journal all of it."""
    journal = log.in_journal(2)
    if not (given.as_json or journal or log.in_journal(1)):
        done = []
    if not (done or seen.survey.not_asked or (journal and seen.findings)):
        return
    logger = log.logger()
    for one in seen.findings if journal else ():
        where = f"run {one.run_id}" + (f" task {one.task_id}" if one.task_id else "")
        text = "; ".join(filter(None, [f"{one.kind}: {where}: {one.what}", one.way_out]))
        logger.log(log.LEVELS[one.severity], "{}", printable(text))
    for ended in done:
        text = f"{ended.finding.kind} of run {ended.finding.run_id}: {ended.what}"
        logger.log("INFO" if ended.ok else "ERROR", "{}", printable(text))
    for missing in seen.survey.not_asked:
        logger.error("{}", printable(f"not asked: {missing.observer}: {missing.why}"))


def _write_metrics(path: str, seen: Look, seconds: float) -> None:
    whole = not seen.survey.not_asked
    metrics.write(
        path,
        metrics.text(
            seen.findings,
            seen.states,
            seconds=seconds,
            not_asked=len(seen.survey.not_asked),
            not_inspectable=seen.survey.blind,
            last_success=seen.survey.wall if whole else metrics.last_success(path),
        ),
    )
