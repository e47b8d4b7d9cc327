"""The report as one page that needs nothing else: no script, no font, no picture from anywhere."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from sandbox.cli.table import seconds_text
from sandbox.manifest.redact import command_line
from sandbox.report.escape import esc
from sandbox.report.model import Process, Report, TaskReport
from sandbox.report.summary import clock, moment
from sandbox.report.text import after, call_text, finished_text, orders_text, stopped_text
from sandbox.report.timeline import timeline

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content Security Policy Level 3: what an agent's text may ever load or run is nothing."""
OPEN_TASKS = 4
LONG_CELL = 20
FILES_SHOWN = 200
PROOFS = {"empty": "empty, proven", "alive": "not empty", "unknown": "not proven empty"}


def page(report: Report) -> str:
    """HTML, for light and dark screens and for paper."""
    body = [
        _head(report),
        _section("Timeline", timeline(report)),
        _section("Not known", _list(report.not_known) if report.not_known else ""),
        _section("Findings", _findings(report)),
        _section("Orders and rungs", _orders(report)),
        _section("Tasks", "".join(_task(task, len(report.tasks) <= OPEN_TASKS) for task in report.tasks)),
        _section("Processes of no known task", _processes(report.unplaced)),
    ]
    made = f"<footer>made by agentbox report at {esc(moment(report.made_at))}</footer>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(report.run_id)}: where it stopped</title><style>{_style()}</style></head>"
        f"<body><main>{''.join(body)}{made}</main></body></html>\n"
    )


def _style() -> str:
    with open(os.path.join(os.path.dirname(__file__), "style.css"), encoding="utf-8") as file:
        return file.read()


def _section(name: str, content: str) -> str:
    return f"<section><h2>{name}</h2>{content}</section>" if content else ""


def _head(report: Report) -> str:
    live = ("bad", "something of it is alive") if report.stopped_at else ("live", report.state)
    chip = {"empty": ("ok", "nothing of it is alive"), "alive": live}
    kind, text = chip.get(report.alive, ("vague", "not known whether it is alive"))
    command = command_line(report.argv, None) if report.argv else "command not known"
    where = f" in {report.cwd}" if report.cwd else ""
    labels = "".join(f"<li><bdi>{esc(name)}={esc(value)}</bdi></li>" for name, value in report.labels.items())
    return (
        f'<header><p class="chip {kind}">{text}</p><h1><bdi>{esc(report.run_id)}</bdi></h1>'
        f'<p class="lead">{esc(_sentence(report.summary))}</p>'
        f'<p class="command"><code>{esc(command)}</code>{esc(where)}</p>'
        + (f'<ul class="labels">{labels}</ul>' if labels else "")
        + f"</header><dl class='figures'>{''.join(_figures(report))}</dl>"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _figures(report: Report) -> Iterable[str]:
    stop = next((stop for stop in report.stops if stop.task_id is None), None)
    live = report.alive == "alive" and not report.stopped_at
    end = report.made_at if live else report.stopped_at
    ran = seconds_text(end - report.created_at) if end and report.created_at else "not known"
    yield _figure("Runs for" if live else "Ran for", ran)
    if stop:
        yield _figure("Order to frozen", after(stop.frozen_at, stop.ordered_at) if stop.frozen_at else "not frozen")
        empty = after(stop.empty_at, stop.ordered_at) if stop.empty_at else "not proven"
        yield _figure("Order to empty", empty, stop.proof)
    if not live:
        yield _figure("Processes ended", str(report.processes))
    gates = [task for task in report.tasks if task.gate]
    flying = str(len(report.in_flight)) if len(gates) == len(report.tasks) else f"{len(report.in_flight)} known"
    yield _figure("Calls in flight", flying if gates else "not known")
    trees = [task for task in report.tasks if task.worktree]
    dirty = [task for task in trees if task.uncommitted]
    unknown = any(task.uncommitted is None for task in trees)
    yield _figure("Uncommitted", "not known" if not trees or unknown else f"{len(dirty)} of {len(trees)} worktrees")
    tokens = [task.tokens for task in gates]
    yield _figure("Tokens marked", str(sum(filter(None, tokens))) if tokens else "not known")
    yield _figure("Record", report.record, {"whole": "empty", "changed": "alive"}.get(report.record, ""))


def _figure(name: str, value: str, kind: str = "") -> str:
    return f'<div class="{kind}"><dt>{name}</dt><dd>{esc(value)}</dd></div>'


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li><bdi>{esc(item)}</bdi></li>" for item in items) + "</ul>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>' if body else ""


def _cell(text: str) -> str:
    kind = ' class="long"' if len(text) > LONG_CELL else ""
    return f"<td{kind}><bdi>{esc(text)}</bdi></td>"


def _findings(report: Report) -> str:
    rows = [
        (one.severity, one.kind, one.task_id or "-", "now" if one.now else clock(one.at), one.what, one.command)
        for one in report.findings
    ]
    return (
        _table(("Severity", "Kind", "Task", "Seen", "What", "Ends it"), rows) or "<p>None, in the record and now.</p>"
    )


def _orders(report: Report) -> str:
    orders = _list(orders_text(report.orders))
    rows = []
    for stop in report.stops:
        steps = [
            (r.at, r.rung, "" if r.processes is None else str(r.processes)) for r in stop.rungs if r.rung != "order"
        ]
        steps += [(stop.frozen_at, "frozen", ""), (stop.empty_at, PROOFS[stop.proof], "0")]
        rows += [
            (stop.task_id or "the run", name, clock(at), after(at, stop.ordered_at), count)
            for at, name, count in sorted(steps, key=lambda step: step[0] or 0.0)
            if at
        ]
    warnings = [line for stop in report.stops for line in stop.warnings]
    left = [one for stop in report.stops for one in (*stop.survivors, *stop.escapees)]
    return (
        orders
        + _table(("Of", "Rung", "At", "After the order", "Processes"), rows)
        + (_list(warnings) if warnings else "")
        + ("<h3>Alive after it</h3>" + _processes(left) if left else "")
    )


def _task(task: TaskReport, opened: bool) -> str:
    badges = "".join(f'<b class="flight">{esc(call.name)}</b>' for call in task.in_flight[:6])
    dirty = f"<b>{len(task.uncommitted)} uncommitted</b>" if task.uncommitted else ""
    return (
        f"<details{' open' if opened else ''}><summary><bdi>{esc(task.task_id)}</bdi>"
        f"<span>{esc(stopped_text(task))}</span>{badges}{dirty}</summary>"
        f"<p class='command'><code>{esc(command_line(task.argv, 'command not known'))}</code></p>"
        f"<dl>{''.join(_facts(task))}</dl>{_processes(task.processes)}</details>"
    )


def _facts(task: TaskReport) -> Iterable[str]:
    if task.gate:
        word = "In flight" if task.ends_marked else "No end marked"
        yield _fact(word, [call_text(call, task.stopped_at) for call in task.in_flight] or ["no call"])
        yield _fact("Finished", [finished_text(task)])
    if task.last_boundary:
        yield _fact(
            "Last boundary", [f"{clock(task.last_boundary.at)} {task.last_boundary.word} {task.last_boundary.name}"]
        )
    if task.worktree:
        yield _fact("Worktree", [f"{task.worktree} on {task.branch}"])
        for name, commit in (("Last checkpoint", task.checkpoint), ("Last commit", task.last_commit)):
            yield _fact(name, [f"{commit.commit[:12]} {commit.subject} ({moment(commit.at)})" if commit else "none"])
    if task.uncommitted is not None:
        yield _fact("Uncommitted", task.uncommitted or ["nothing"])
    if task.files:
        yield _fact("Changed in the last minute", task.files.before or ["no file"])
        if task.files.after:
            yield _fact("Changed since the stop", task.files.after, "bad")
    if task.not_known:
        yield _fact("Not known", task.not_known)


def _fact(name: str, items: Sequence[str], kind: str = "") -> str:
    more = [f"and {len(items) - FILES_SHOWN} more"] if len(items) > FILES_SHOWN else []
    return f'<dt class="{kind}">{name}</dt><dd>{_list([*items[:FILES_SHOWN], *more])}</dd>'


def _processes(found: Sequence[Process]) -> str:
    rows = [
        (
            str(p.pid),
            p.state or "?",
            "?" if p.age is None else seconds_text(p.age),
            command_line(p.argv, p.name),
            p.cwd or "?",
        )
        for p in found
    ]
    return _table(("Pid", "State", "Age", "Process", "In"), rows)
