"""From what was seen to findings: no look at anything here, only rules, so that each can be tried in a table.

A run that may be starting, or whose launcher lives and watches it, is a live run: nothing of it is an orphan. What
could not be told never makes a finding that anything is ended for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sandbox.errors import number_of
from sandbox.reconcile.boxes import SeenBox
from sandbox.reconcile.findings import Finding, Remedy, finding, in_order
from sandbox.reconcile.processes import ghosts_and_escapees
from sandbox.reconcile.records import Recorded
from sandbox.reconcile.state import Verdict, alive, closed, state_of
from sandbox.reconcile.survey import Survey
from sandbox.reconcile.worktree_rules import worktree_findings

STOP = Remedy("stop")


def classify(seen: Survey) -> list[Finding]:
    """All findings, the gravest first; the same for the same survey."""
    found: list[Finding] = []
    over: dict[str, Verdict] = {}
    ends: dict[str, str | None] = {}
    for run_id in sorted({*seen.runs, *seen.boxes}) if seen.records_seen else ():
        run = seen.runs.get(run_id) or Recorded(run_id, missing=True)
        boxes = seen.boxes.get(run_id, [])
        verdict = state_of(seen, run, boxes)
        over[run_id] = verdict
        ends[run_id] = verdict.since or _ended_at(run)
        found += _of_run(seen, run, boxes, verdict)
    found += ghosts_and_escapees(seen, over) if seen.records_seen else ()
    found += worktree_findings(seen.worktrees, over, ends)
    found = _without_covered(seen, found)
    found += _disagreements(seen)
    if seen.engine:
        found.append(_engine(seen))
    return in_order(found)


def confirmed(found: list[Finding], looks: list[Survey]) -> list[Finding]:
    """Those that each of some later looks at the same runs finds, too; in the words of the last."""
    for seen in looks:
        again = {one.identity: one for one in classify(seen)}
        found = [again[one.identity] for one in found if one.identity in again]
    return found


def run_states(seen: Survey) -> dict[str, str]:
    """The state of each run in a word, for the metrics."""
    found = {}
    for run_id in {*seen.runs, *seen.boxes}:
        run = seen.runs.get(run_id) or Recorded(run_id, missing=True)
        found[run_id] = state_of(seen, run, seen.boxes.get(run_id, [])).state
    return found


def _ended_at(run: Recorded) -> str | None:
    """When the run ended, or its main task where nobody recorded more."""
    main = run.run.tasks.get(run.run.main_task)
    return (run.run.ended or {}).get("ts") or (main.ended_at if main else None)


def _of_run(seen: Survey, run: Recorded, boxes: list[SeenBox], verdict: Verdict) -> Iterator[Finding]:
    if run.bad_count or run.unreadable:
        yield _bad_record(run)
    if verdict.kind:
        yield _box_finding(run, boxes, verdict)
    elif verdict.state in ("running", "paused"):
        yield from _of_tasks(seen, run, boxes)
    if closed(verdict):
        yield from _leftover_cgroups(seen, run, boxes, verdict)


def _box_finding(run: Recorded, boxes: list[SeenBox], verdict: Verdict) -> Finding:
    living = [box for box in boxes if box.populated is not False]
    command = f"agentbox kill {run.run_id}"
    if verdict.kind == "unknown_box" and not all(box.ours for box in living):
        command = "; ".join(f"echo 1 > {box.path}/cgroup.kill" for box in living)
    if verdict.kind == "lost":
        command = "agentbox reconcile --kill" + f" --run {run.run_id}"
    return finding(
        verdict.kind,
        run.run_id,
        None,
        verdict.why,
        since=verdict.since or run.run.created_at,
        evidence={
            **verdict.evidence,
            "boxes": [box.path or box.backend for box in boxes],
            "processes": sum(len(box.pids) for box in boxes),
            "pids": [pid for box in boxes for pid in box.pids][:50],
            "launcher_alive": run.launcher,
        },
        command=command,
        key=tuple(sorted((box.inode or 0) for box in living)),
        **({"severity": verdict.severity} if verdict.severity else {}),
        remedy=verdict.remedy,
    )


def _of_tasks(seen: Survey, run: Recorded, boxes: list[SeenBox]) -> Iterator[Finding]:
    """Single tasks of a live run."""
    where: dict[str, list[SeenBox]] = {}
    for box in boxes:
        for task_id in box.live_tasks:
            where.setdefault(task_id, []).append(box)
    for task_id, found in sorted(where.items()):
        if len(found) > 1:
            yield _task(run, task_id, found, "duplicate_task", f"{len(found)} live boxes have task id {task_id}", None)
        kind, why = _task_verdict(seen, run, task_id)
        if kind:
            yield _task(run, task_id, found, kind, why, STOP if kind == "orphan" else None)
    yield from _stalled(seen, run, where)


def _task_verdict(seen: Survey, run: Recorded, task_id: str) -> tuple[str, str]:
    task = run.run.tasks.get(task_id)
    if task is None:
        # While any task may be starting, its box comes after its intent, and the record may be older than the box.
        return ("", "") if run.unreadable or run.bad_count else ("unknown_box", f"no record of a task {task_id}")
    if task.state in ("exited", "failed"):
        return "orphan", f"task {task_id} has ended, and its box is alive"
    if run.launchers.get(task_id) is False and run.run_id not in seen.pids_elsewhere:
        return "orphan", f"the launcher of task {task_id} is gone"
    return "", ""


def _task(run: Recorded, task_id: str, boxes: list[SeenBox], kind: str, why: str, remedy: Remedy | None) -> Finding:
    task = run.run.tasks.get(task_id)
    return finding(
        kind,
        run.run_id,
        task_id,
        why,
        since=task.started_at if task else None,
        evidence={"boxes": [box.path for box in boxes], "pids": [p for b in boxes for p in b.tasks[task_id]][:50]},
        command=f"agentbox kill {run.run_id} --task {task_id}",
        key=tuple(sorted((box.inode or 0) for box in boxes)),
        remedy=remedy,
    )


def _stalled(seen: Survey, run: Recorded, where: dict[str, list[SeenBox]]) -> Iterator[Finding]:
    if run.order is None or run.order.word != "RUN":
        return
    for task_id, allowance in run.allowances.items():
        key, began = (run.run_id, task_id), run.monos.get(task_id)
        quiet = min(seen.wall - seen.beats.get(key, 0.0), seen.now - began if began is not None else 0.0)
        if task_id in where and key not in seen.held and quiet > 2 * allowance:
            never = " (it has never passed a gate)" if key in seen.gateless else ""
            why = f"no boundary for {quiet:.0f} s{never}; its allowance is {allowance:g} s, and twice that has gone by"
            yield _task(run, task_id, where[task_id], "stalled", why, None)


def _leftover_cgroups(seen: Survey, run: Recorded, boxes: list[SeenBox], verdict: Verdict) -> Iterator[Finding]:
    for box in boxes:
        if box.populated is not False or not box.path or not box.ours or alive(boxes):
            continue
        yield finding(
            "leftover_cgroup",
            run.run_id,
            None,
            f"an empty cgroup was left behind by a run that is {verdict.state}",
            since=verdict.since,
            evidence={"path": box.path, "backend": box.backend},
            command=f"agentbox reconcile --kill --run {run.run_id}",
            key=(box.path,),
            remedy=Remedy("remove"),
        )


def _bad_record(run: Recorded) -> Finding:
    what = run.unreadable and f"the record cannot be read: {run.unreadable}"
    return finding(
        "bad_record",
        run.run_id,
        None,
        what or f"{run.bad_count} line(s) of the record make no sense",
        since=run.run.created_at,
        evidence={"lines": [vars(bad) for bad in run.bad], "count": run.bad_count},
        command=f"agentbox verify {run.run_id}",
        key=(run.bad_count, run.unreadable),
    )


def _engine(seen: Survey) -> Finding:
    return finding(
        "engine_unreachable",
        None,
        None,
        f"containers could not be asked about: {seen.engine}",
        evidence={"why": seen.engine},
        command="agentbox doctor",
        key=("engine",),
    )


def _disagreements(seen: Survey) -> Iterator[Finding]:
    for one in seen.disagreements:
        alive = (
            f"{number_of(len(one.pids), 'live process')} in its cgroup"
            if one.populated
            else "nothing lives in its cgroup"
        )
        yield finding(
            "engine_disagrees",
            one.run_id,
            one.task_id,
            f"the engine says that container {one.container} is {one.status}, and {alive}",
            evidence=one.as_evidence(),
            command=f"agentbox kill {one.run_id} --task {one.task_id}",
            key=(one.container, one.populated),
        )


def _without_covered(seen: Survey, found: list[Finding]) -> list[Finding]:
    """A box finding is left out where each of its processes is a ghost that is listed itself, and ended with it."""
    ghosts: dict[str | None, set[Any]] = {}
    for one in found:
        if one.kind == "ghost" and one.evidence.get("inside"):
            ghosts.setdefault(one.run_id, set()).update([one.evidence["pid"], *one.evidence["wrappers"]])

    def covered(one: Finding) -> bool:
        if one.kind not in ("orphan", "leftovers", "stopped_alive", "expired") or one.run_id not in ghosts:
            return False
        pids = {pid for box in seen.boxes.get(one.run_id or "", []) for pid in box.pids}
        return bool(pids) and pids <= ghosts[one.run_id]

    return [one for one in found if not covered(one)]
