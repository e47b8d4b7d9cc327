"""What the drill looks at: traces that the calls themselves left, the kernel, git, the record. Nothing is asked of
the workers but their own marks, and what they say is set against the rest.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.control.status import load, status
from sandbox.drill.ground import Ground
from sandbox.drill.score import Measured
from sandbox.harness.beat import Mark, marks
from sandbox.kernel.identity import Identity, boot_id
from sandbox.kernel.procfs import Member, look
from sandbox.manifest.redact import command_line
from sandbox.manifest.verify import verify
from sandbox.reconcile.doorways import moment
from sandbox.reconcile.look import look as reconcile
from sandbox.worktree.state import look as look_at_tree

MEMBERS_SECONDS = 2.0
ALIVE = ("orphan", "escapee", "ghost", "stopped_alive", "leftovers", "unknown_box")
"""Kinds of findings that say: something lives that should not."""


@dataclass(frozen=True)
class Call:
    """A call, by its own trace: `at` in seconds since 1970."""

    at: float
    job: str
    name: str


def starts(ground: Ground) -> list[Call]:
    """The calls that have begun, of all workers."""
    return [Call(at, job, words[1]) for job, at, words in _traces(ground) if words[0] == "start"]


def told(ground: Ground) -> set[str]:
    """The jobs whose worker was told a change of its plan."""
    return {job for job, _, words in _traces(ground) if words == ["delta"]}


def _traces(ground: Ground) -> list[tuple[str, float, list[str]]]:
    found = []
    for job in sorted(os.listdir(f"{ground.folder}/calls")):
        with open(f"{ground.folder}/calls/{job}", encoding="utf-8", errors="replace") as file:
            for line in file:
                at, *words = line.split()
                if line.endswith("\n") and words:
                    found.append((job, float(at), words))
    return found


def begun(ground: Ground) -> Counter[str]:
    """How many calls each worker has begun."""
    return Counter(call.job for call in starts(ground))


def worktrees(ground: Ground) -> Measured:
    """Worktrees with a change, or with a stash made in them."""
    run, _ = load(ground.home, ground.run_id)
    bad, unknown = [], []
    for task in run.tasks.values():
        if not (task.worktree and task.branch) or task.state == "failed":
            continue
        state = look_at_tree(ground.run_id, task.task_id, task.worktree, task.branch, task.repository, task.base)
        if state.dirty or state.stashes:
            bad.append(f"{task.task_id} {'dirty' if state.dirty else 'stashed'}")
        elif state.clean is None or state.stashes is None:
            unknown.append(f"{task.task_id}: {state.why}")
    if unknown and not bad:
        return Measured(None, "; ".join(unknown))
    return Measured(len(bad), ", ".join(bad))


def identities(ground: Ground, tasks: Sequence[str]) -> dict[str, Identity]:
    """Who each task is by the record; a task without a process is left out."""
    run, _ = load(ground.home, ground.run_id)
    found = {}
    for name in tasks:
        task = run.tasks.get(name)
        if task and task.pid and task.start_ticks is not None and task.state == "started":
            found[name] = Identity(task.boot_id or boot_id(), task.pid, task.start_ticks)
    return found


def duplicates(ground: Ground, kept: dict[str, Identity]) -> Measured:
    """Workers that do what another one does already, by the kernel; and kept tasks that are not who they were."""
    members = _members(ground)
    if members is None:
        return Measured(None, "the run's processes could not be read")
    script = f"{ground.folder}/bin/worker.sh"
    workers = {m.pid: m for m in members if m.argv and m.argv[1:2] == [script] and len(m.argv) > 4}
    # A shell forks before it execs, and its child looks like itself for as long.
    first = [m for m in workers.values() if m.ppid not in workers]
    jobs = Counter(m.argv[4] for m in first if m.argv)
    twice = [f"{job} {number} times" for job, number in sorted(jobs.items()) if number > 1]
    now = identities(ground, list(kept))
    restarted = [name for name, one in kept.items() if now.get(name) != one or one.alive() is False]
    value = sum(number - 1 for number in jobs.values()) + len(restarted)
    return Measured(value, ", ".join([*twice, *(f"{name} restarted" for name in restarted)]))


def _members(ground: Ground) -> list[Member] | None:
    found: dict[int, Member] = {}
    for backend, box in status(ground.home, ground.run_id).boxes:
        members = backend.members(box, MEMBERS_SECONDS)
        if members is None:
            return None
        found |= {member.pid: member for member in members}
    return list(found.values())


def pushes(ground: Ground) -> Measured:
    """Updates of main in the remote, by its own log, beyond the first push."""
    try:
        with open(f"{ground.folder}/remote.git/logs/refs/heads/main", encoding="utf-8", errors="replace") as file:
            return Measured(len(file.readlines()) - 1)
    except OSError as error:
        return Measured(None, f"the remote's log: {error.strerror}")


def orphans(ground: Ground, seconds: float) -> Measured:
    """What lives after the abort: by its boxes at once; by boxes, token, heartbeats and findings `seconds` later."""
    first = _members(ground)
    hearts = _hearts(ground)
    time.sleep(seconds)
    again = _members(ground)
    if first is None or again is None:
        return Measured(None, "the run's processes could not be read")
    grown = sorted(name for name, size in _hearts(ground).items() if size != hearts.get(name))
    living = {m.pid: m for m in (*first, *again)}
    living |= {one.pid: look(one.pid) for one in _without_launchers(ground) if one.alive()}
    findings = [one.kind for one in reconcile(ground.home, ground.run_id).findings if one.kind in ALIVE]
    lines = [f"{m.pid} {command_line(m.argv, m.comm or '?')}" for m in living.values()]
    lines += [f"{name} still beats" for name in grown]
    return Measured(max(len(living), len(grown), len(findings)), "; ".join(lines + findings))


def _without_launchers(ground: Ground) -> list[Identity]:
    run, _ = load(ground.home, ground.run_id)
    launchers = {task.launcher.pid for task in run.tasks.values() if task.launcher}
    return [one for one in ground.marked() if one.pid not in launchers]


def _hearts(ground: Ground) -> dict[str, int]:
    folder = f"{ground.folder}/hearts"
    return {name: os.stat(f"{folder}/{name}").st_size for name in sorted(os.listdir(folder))}


def all_marks(ground: Ground) -> dict[str, list[Mark]]:
    """The marks of each task."""
    run, _ = load(ground.home, ground.run_id)
    return {name: marks(ground.home.run_dir(ground.run_id).beat(name)) for name in run.tasks}


def tokens(ground: Ground, empty_at: float | None, alive: Sequence[str]) -> Measured:
    """Tokens that ticks name after the run was empty. Unknown where one of the tasks `alive` has never ticked any."""
    seen = all_marks(ground)
    silent = [name for name in alive if not any(mark.tokens for mark in seen.get(name, []))]
    if empty_at is None or silent or not alive:
        return Measured(None, f"no tick of {', '.join(silent)}" if silent else "when it was empty is not known")
    late = [mark for task in seen.values() for mark in task if mark.word == "tick" and mark.at > empty_at]
    before = sum(mark.tokens for task in seen.values() for mark in task if mark.word == "tick" and mark not in late)
    return Measured(sum(mark.tokens for mark in late), f"{before} before")


def work_after(ground: Ground, ordered_at: float | None) -> Measured:
    """Calls that began after the order without their gate having let them through, and tasks started after it."""
    if ordered_at is None:
        return Measured(None, "when the stop was ordered is not known")
    seen = [mark for task in all_marks(ground).values() for mark in task]
    # A gate marks the call, looks once more, and marks a stop if it does not let it through after all.
    passed = {m.name for m in seen if m.word == "call"} - {m.name for m in seen if m.word == "stop"}
    calls = [call.name for call in starts(ground) if call.at > ordered_at and call.name not in passed]
    run, _ = load(ground.home, ground.run_id)
    tasks = [t.task_id for t in run.tasks.values() if (moment(t.started_at) or 0) > ordered_at]
    return Measured(len(calls) + len(tasks), ", ".join([*calls, *(f"task {name}" for name in tasks)]))


def head(ground: Ground) -> str:
    """The digest of the last record now: it must be there later."""
    return verify(ground.home.run_dir(ground.run_id).manifest, run_id=ground.run_id).head


def record(ground: Ground, head: str) -> Measured:
    """What `verify` finds wrong with the run's record, given the head that was noted before."""
    verdict = verify(ground.home.run_dir(ground.run_id).manifest, head, ground.run_id)
    return Measured(len(verdict.problems), "; ".join(one.what for one in verdict.problems))
