"""Reports made by hand: for what a page and a text look like with many tasks, long names and hostile text."""

from __future__ import annotations

from sandbox.report.model import (
    Boundary,
    Call,
    Commit,
    Files,
    Finding,
    Hold,
    Order,
    Process,
    Report,
    Rung,
    Stop,
    TaskReport,
    Time,
)
from sandbox.report.summary import summary

BEGIN = 1_772_446_400.0
TOOLS = ("Read", "Edit", "Bash", "Grep", "WebFetch")


def task(number: int, end: float, name: str = "", text: str = "") -> TaskReport:
    """A worker that makes calls until `end`, is held for a while, and has one call in flight then."""
    found = TaskReport(name or f"worker-{number:02d}", "exited", ["omp", "--mode", "rpc", text or f"part {number}"])
    found.started_at, found.stopped_at, found.stopped_by = Time(BEGIN + number * 0.7), Time(end), "frozen"
    found.backend, found.outcome, found.code, found.gate, found.tokens = "cgroup", "killed", 137, True, 1000 * number
    at = BEGIN + 1 + number * 0.8
    while at < end - 1:
        length = 0.4 + (number * 7 + len(found.calls) * 13) % 11
        if BEGIN + 60 < at < BEGIN + 75:
            found.holds.append(Hold("Bash", Time(at), Time(BEGIN + 75)))
            at = BEGIN + 75
            continue
        tool = text or TOOLS[len(found.calls) % len(TOOLS)]
        found.calls.append(Call(tool, Time(at), Time(at + length) if at + length < end else None, 12))
        at += length + 0.3
    found.in_flight = [call for call in found.calls if call.ended is None]
    last = found.calls[-1]
    found.last_boundary = Boundary(last.ended or last.began or Time(end), "call", last.name)
    found.worktree, found.branch = f"/srv/wt-r1-{found.task_id}", f"agent/r1/{found.task_id}"
    found.checkpoint = Commit("3f9c" * 10, Time(end - 20), text or f"wip: {found.task_id} 3")
    found.uncommitted = [f" M {text or 'src/app.py'}", "?? notes.txt"] if number % 3 == 0 else []
    found.files = Files(found.worktree, [text or "src/app.py"], [], True)
    found.processes = [Process(4000 + number, found.argv, "omp", end - BEGIN, "S", found.worktree, found.task_id)]
    return found


def sample(tasks: int, *, text: str = "", length: float = 120.0, names: str = "") -> Report:
    """A run with so many tasks that was paused, resumed and killed; `text` stands wherever an agent can put some."""
    end = BEGIN + length
    report = Report("r1", Time(end + 600), "stopped", "", "empty")
    report.argv, report.cwd, report.host, report.backend = (
        ["omp", text or "--mode", "rpc"],
        "/srv/app",
        "build1",
        "cgroup",
    )
    report.created_at, report.created_by = Time(BEGIN), "uid 1000 (dev) pid 4711"
    report.labels = {"project": text or "web"}
    report.stopped_at, report.empty_at, report.ended_at = Time(end + 0.021), Time(end + 0.034), Time(end + 0.1)
    report.outcome, report.code, report.record = "killed", 137, "whole"
    by = "uid 1000 (dev) pid 4999"
    report.orders = [
        Order(Time(BEGIN + 60), "PAUSE", None, "look at the plan", by, 2),
        Order(Time(BEGIN + 75), "RUN", None, "resumed", by, 3),
        Order(Time(end), "STOP", None, text or "wrong branch", by, 4),
    ]
    report.tasks = [task(n, end + 0.021, f"{names}{n:02d}" if names else "", text) for n in range(tasks)]
    every = [one for found in report.tasks for one in found.processes]
    rungs = [Rung(Time(end + 0.001), "order", None, None), Rung(Time(end + 0.002), "kill", None, len(every))]
    times = (Time(end), Time(end + 0.021), Time(end + 0.034))
    report.stops = [Stop(None, *times, "empty", by, text or "wrong branch", rungs, every)]
    report.findings = [
        Finding("dirty_worktree", "info", "worker-00", text or "work not committed", None, "git status", True)
    ]
    report.not_known = [text] if text else []
    report.summary = summary(report)
    return report
