"""What ended runs left behind, and removing it: empty cgroups, stopped containers, worktrees, old records.

Nothing that is alive, that could not be told, or that may have work in it is ever among them: a record stays while
a worktree that it names is there, while anything of its run is found, and while its container stays.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.boxes.base import Unavailable
from sandbox.boxes.registry import local_backends
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.reconcile.containers import engine_address
from sandbox.reconcile.doorways import moment
from sandbox.reconcile.look import Look, look, recheck
from sandbox.reconcile.prune_worktrees import OVER, secure, worktrees
from sandbox.reconcile.prune_worktrees import remove as remove_worktree
from sandbox.reconcile.records import read_run, worktrees_of
from sandbox.worktree.prune import Candidate

OLD_SECONDS = 7 * 86400.0
"""A record younger than this is kept unless asked otherwise: it is what tells where a run stopped."""


@dataclass
class Leftover:
    """`where`: its path or the container's name; `why`: for people. `did`: what its removal did, where that is more."""

    what: Literal["cgroup", "container", "worktree", "record"]
    run_id: str
    where: str
    why: str
    id: str = ""
    tree: Candidate | None = None
    drop_ignored: bool = False
    did: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {"what": self.what, "run_id": self.run_id, "where": self.where, "why": self.why}


@dataclass
class Leftovers:
    """`found`: what could go; `kept`: what stays, and why; `not_asked`: who could not be asked.

    `trees`: the worktrees that stay.
    """

    found: list[Leftover]
    kept: list[str]
    not_asked: list[str]
    trees: list[Candidate] = field(default_factory=list)


def leftovers(home: Home, older_than: float = OLD_SECONDS, drop_ignored: bool = False) -> Leftovers:
    """Look, and change nothing. `older_than`: seconds since its end that a record must be old.

    `drop_ignored`: files that git ignores are nothing to keep a worktree for.
    """
    seen = look(home)
    missing = [f"{one.observer}: {one.why}" for one in seen.survey.not_asked]
    result = Leftovers(list(_cgroups(seen)), [], missing)
    held = {one.run_id for one in seen.survey.servers} | {one.run_id for one in seen.survey.strays}
    held |= {one.run_id for one in seen.findings if one.run_id and one.kind not in ("leftover_cgroup", "bad_record")}
    containers = _containers(home, seen, result)
    result.found += containers
    _worktrees(home, seen, result, drop_ignored)
    going = {one.where for one in result.found if one.what == "worktree"}
    for run_id, state in sorted(seen.states.items()):
        if state in OVER and not missing:
            boxes = seen.survey.boxes.get(run_id, [])
            if run_id in held or any(box.populated is not False for box in boxes):
                continue
            if why := _keeps(home, run_id, seen.survey.wall, older_than, going):
                result.kept.append(f"{run_id}: {why}") if why != "young" else None
            else:
                result.found.append(Leftover("record", run_id, home.run_dir(run_id).path, f"the run is {state}"))
    return result


def _cgroups(seen: Look) -> Iterator[Leftover]:
    for one in seen.findings:
        if one.kind == "leftover_cgroup" and one.run_id:
            yield Leftover("cgroup", one.run_id, str(one.evidence["path"]), "empty")


def _worktrees(home: Home, seen: Look, result: Leftovers, drop_ignored: bool) -> None:
    found, unasked = worktrees(home, seen, drop_ignored)
    result.not_asked += unasked
    for one in found:
        if one.removable:
            why = "nothing in it could be lost" if one.state.exists else "its directory is gone"
            left = Leftover("worktree", one.run_id, one.path, why, tree=one, drop_ignored=drop_ignored)
            result.found.append(left)
        else:
            result.trees.append(one)
            result.kept.append(f"{one.path}: {'; '.join(one.keep)}")


def _keeps(home: Home, run_id: str, now: float, older_than: float, going: Collection[str]) -> str:
    """Why a run's record stays, "young" where that is all, or "" if it may go. `going`: worktrees that go first."""
    run = read_run(home, run_id, whole=True)
    if run.missing or run.unreadable or run.bad_count:
        return "its record is not whole"
    ends = [(run.run.ended or {}).get("ts"), *(r.get("empty_at") for r in run.run.receipts)]
    known = [end for end in map(moment, ends) if end is not None]
    if not known:
        return "its end is not recorded"
    if now - max(known) < older_than:
        return "young"
    paths = {task.worktree or "" for task in worktrees_of(home, run_id)} - {*going}
    trees = sorted(path for path in paths if os.path.lexists(path))
    return f"worktree {trees[0]} is there" if trees else ""


def _containers(home: Home, seen: Look, result: Leftovers) -> list[Leftover]:
    """Stopped containers of runs that are over."""
    if not engine_address():
        return []
    from sandbox.boxes.docker_engine import RUN, Engine

    try:
        engine = Engine()
        rows = engine.ours(home.path)
        found = []
        for row in rows:
            run_id = row["Labels"][RUN]
            state = engine.inspect(row["Id"])
            over = seen.states.get(run_id, "gone") in (*OVER, "gone")
            if state.down and state.stays_down and over:
                found.append(Leftover("container", run_id, state.name, f"stopped, exit {state.exit_code}", state.id))
        return found
    except (AgentboxError, KeyError) as error:
        result.not_asked.append(f"containers: {error}")
        return []


def remove(home: Home, one: Leftover) -> str:
    """Remove it after another look; "" if it is gone, else why not. Raises nothing."""
    try:
        if one.what == "cgroup":
            return _remove_cgroup(home, one)
        if one.what == "container":
            return _remove_container(one)
        if one.tree is not None:
            one.did = remove_worktree(home, one.tree, one.drop_ignored)
            return ""
        return _remove_record(home, one)
    except (AgentboxError, OSError) as error:
        return str(error)


def secured(found: Leftovers) -> list[str]:
    """Keep by refs the commits that only worktrees that stay know; what was done, a line each. Raises nothing."""
    return [line for one in found.trees if not one.foreign for line in secure(one)]


def _remove_cgroup(home: Home, one: Leftover) -> str:
    for backend in local_backends(home.path):
        try:
            for box in backend.parents(one.run_id, one.where):
                backend.destroy(box)
        except Unavailable:
            continue
    return f"{one.where} is in use" if os.path.isdir(one.where) else ""


def _remove_container(one: Leftover) -> str:
    from sandbox.boxes.docker_engine import Engine, NotThere

    engine = Engine()
    try:
        if not engine.inspect(one.id).down:
            return "it runs again"
        # No force: one that was started meanwhile is refused by the engine.
        engine.bounded(30.0, lambda: engine.api.remove_container(one.id, v=False))
    except NotThere:
        return ""
    return ""


def _remove_record(home: Home, one: Leftover) -> str:
    """The run's directory, never through a symbolic link, only if a look at this run alone finds nothing alive."""
    seen = look(home, one.run_id)
    if seen.survey.not_asked or seen.states.get(one.run_id) not in OVER or seen.survey.strays:
        return "it could not be proven over again"
    if any(box.populated is not False for box in seen.survey.boxes.get(one.run_id, [])):
        return "it is alive"
    if recheck(home, seen.survey, [f for f in seen.findings if f.kind not in ("leftover_cgroup", "bad_record")]):
        return "there is a finding about it"
    if why := _keeps(home, one.run_id, seen.survey.wall, 0.0, ()):
        return why
    path = home.run_dir(one.run_id).path
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return "it is not a directory"
    _make_removable(path)
    shutil.rmtree(path)
    return ""


def _make_removable(path: str) -> None:
    """Its folders may be left read-only by what worked in them (`run --own-dirs`): rmtree would stop half-way."""
    for folder, names, _ in os.walk(path):
        for name in names:
            if not os.path.islink(f"{folder}/{name}"):
                os.chmod(f"{folder}/{name}", 0o700)
