"""Asking all observers, side by side and each within its time, and putting together what they saw.

An observer that hangs or fails is named under `not_asked`; what it would have seen counts as unknown, never as gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sandbox.control import orders
from sandbox.errors import AgentboxError
from sandbox.kernel.background import Background
from sandbox.kernel.identity import Identity, boot_id
from sandbox.kernel.procfs import read_stat, started_at
from sandbox.kernel.scan import pid_namespace
from sandbox.manifest.home import Home
from sandbox.reconcile.boxes import SeenBox, look_again, read_boxes
from sandbox.reconcile.containers import Contained, Stranger, engine_address, merge, read_containers
from sandbox.reconcile.doorways import Doorways, moment
from sandbox.reconcile.mcp_config import Configurations
from sandbox.reconcile.records import Recorded, read_run, read_runs, reread, worktrees_of
from sandbox.reconcile.servers import Place, Server, find_servers
from sandbox.reconcile.strays import Outside, Stray, read_outside
from sandbox.reconcile.worktrees import read_worktrees, to_look_at
from sandbox.worktree.state import State

if TYPE_CHECKING:
    from sandbox.reconcile.engine_word import Disagreement

T = TypeVar("T")

SECONDS = 10.0
"""For one observer. A machine at the size of the budget needs a tenth of it."""


@dataclass
class NotAsked:
    """An observer without an answer. `quiet`: it was not needed, so nothing is missing."""

    observer: str
    why: str

    def as_dict(self) -> dict[str, str]:
        return {"observer": self.observer, "why": self.why}


@dataclass
class Survey:
    """What was seen. `now` is CLOCK_MONOTONIC, `wall` seconds since the epoch.

    `boxes`: those of each run. `pids_elsewhere`: runs whose processes live in another pid namespace, or are recorded
    under a boot id that is not told here, so that a recorded launcher can't be looked for. `ages` and `owners`: for
    boxes without a record, how old the oldest process is (seconds), and whether whoever started it is alive. `beats`:
    when a task with an allowance last passed a boundary or was let go on (seconds since the epoch, 0 = never);
    `gateless`: those that never passed one; `held`: those under an order of their own. `unread`: why processes could
    not be looked into, by pid; `hidden`: how many more /proc does not show. `engine`: why the container engine could
    not be asked, or "".
    """

    home: str
    runs: dict[str, Recorded] = field(default_factory=dict)
    boxes: dict[str, list[SeenBox]] = field(default_factory=dict)
    servers: list[Server] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    not_asked: list[NotAsked] = field(default_factory=list)
    unread: dict[int, str] = field(default_factory=dict)
    hidden: int = 0
    engine: str = ""
    emergency: str = ""
    pids_elsewhere: set[str] = field(default_factory=set)
    ages: dict[str, float] = field(default_factory=dict)
    owners: dict[str, bool | None] = field(default_factory=dict)
    stoppers: dict[str, bool | None] = field(default_factory=dict)
    beats: dict[tuple[str, str], float] = field(default_factory=dict)
    gateless: set[tuple[str, str]] = field(default_factory=set)
    held: set[tuple[str, str]] = field(default_factory=set)
    now: float = 0.0
    wall: float = 0.0
    boxes_seen: bool = True
    records_seen: bool = True
    worktrees: list[State] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    boot: str = field(default_factory=boot_id)
    host: str = field(default_factory=lambda: os.uname().nodename)

    @property
    def blind(self) -> int:
        """How many processes could not be looked into."""
        return len(self.unread) + self.hidden


class _Asked(Generic[T]):
    """One observer in a thread of its own. Whoever waits for it stops waiting in time; a daemon thread may hang on."""

    def __init__(self, name: str, act: Callable[[], T], seconds: float) -> None:
        self.name = name
        self.value: T | None = None
        self.why = ""
        self._act = act
        self._deadline = time.monotonic() + seconds
        try:
            self._asking = Background(self._run)
        except RuntimeError as error:
            self.why = f"no thread could be started: {error}"

    def _run(self) -> None:
        try:
            self.value = self._act()
        except AgentboxError as error:
            self.why = str(error)
        except Exception as error:
            # One observer's fault must not take the others' answers with it.
            self.why = f"{type(error).__name__}: {error}"

    def get(self, not_asked: list[NotAsked]) -> T | None:
        """The answer, or None with the reason in `not_asked`."""
        if not self.why and not self._asking.wait(max(0.0, self._deadline - time.monotonic())):
            self.why = "no answer in time"
        if self.why:
            not_asked.append(NotAsked(self.name, self.why))
            return None
        return self.value


def survey(home: Home, only: str | None = None, seconds: float = SECONDS) -> Survey:
    """Look at everything, or at one run alone. Raises nothing."""
    seen = Survey(home.path, emergency=orders.emergency_stop(home.emergency_stop))
    records = _Asked("records", lambda: read_runs(home, only), seconds)
    cgroups = _Asked("cgroups", lambda: read_boxes(home, only), seconds)
    engine = _Asked("containers", lambda: read_containers(home, only), seconds) if engine_address() else None
    # A limited look must not fail for what it need not know.
    runs = records.get(seen.not_asked)
    seen.records_seen = runs is not None
    seen.runs = runs or {}
    boxes = cgroups.get(seen.not_asked)
    seen.boxes_seen = boxes is not None
    boxes = boxes or []
    seen.not_asked += [_untold(box) for box in boxes if box.populated is None]
    contained, strangers, seen.disagreements = _engine(seen, engine)
    for box in merge(boxes, contained):
        seen.boxes.setdefault(box.run_id, []).append(box)
    _deepen(home, seen)
    outside = _Asked("processes", lambda: _outside(home, seen, only, strangers), seconds)
    _facts(seen)
    found = outside.get(seen.not_asked)
    if found is not None:
        seen.strays, seen.unread, seen.hidden = found.strays, found.table.unread, found.hidden
    servers = _Asked("mcp servers", lambda: find_servers(_places(seen), _configurations(seen)), seconds)
    seen.servers = servers.get(seen.not_asked) or []
    _trees(home, seen, seconds)
    seen.now, seen.wall = time.monotonic(), time.time()
    return seen


def _engine(seen: Survey, asked: _Asked[Contained] | None) -> Contained:
    recorded = any(uses_engine(run) for run in seen.runs.values() if not run.ended)
    if asked is None:
        if recorded:
            seen.engine = "no engine is set up here (no DOCKER_HOST, no socket that this user may use)"
            seen.not_asked.append(NotAsked("containers", seen.engine))
        return [], [], []
    missing: list[NotAsked] = []
    found = asked.get(missing)
    for one in missing:
        absent = "no docker engine at" in one.why or "docker-py is missing" in one.why or "no permission" in one.why
        if recorded or not absent:
            # Without a run in a container, an engine that is not there has nothing to tell.
            seen.engine = one.why
            seen.not_asked.append(one)
    return found or ([], [], [])


def uses_engine(run: Recorded) -> bool:
    return run.run.backend == "docker" or any(task.backend == "docker" for task in run.run.tasks.values())


def _deepen(home: Home, seen: Survey) -> None:
    """An ended run with a box that is there after all is read whole."""
    for run_id in seen.boxes:
        run = seen.runs.get(run_id)
        if run is not None and not run.whole:
            seen.runs[run_id] = read_run(home, run_id, whole=True)


def _outside(home: Home, seen: Survey, only: str | None, strangers: list[Stranger]) -> Outside:
    boxes = [box for found in seen.boxes.values() for box in found]
    return read_outside(home, boxes, seen.runs, only, Doorways(home, seen.runs, only, strangers))


def _trees(home: Home, seen: Survey, seconds: float) -> None:
    """Of runs that may be over: in a live one there is work going on."""
    over = [run_id for run_id, run in seen.runs.items() if run.ended or run.launcher is not True]
    tasks = ((run_id, task) for run_id in over for task in worktrees_of(home, run_id))
    if wanted := to_look_at(tasks):
        trees = _Asked("worktrees", lambda: read_worktrees(wanted), seconds)
        seen.worktrees = trees.get(seen.not_asked) or []


def _facts(seen: Survey) -> None:
    """Small questions about single runs that classification needs the answers to."""
    own_ns, home = pid_namespace(os.getpid()), Home(seen.home)
    if own_ns is None:
        seen.not_asked.append(NotAsked("processes", "this process's own pid namespace could not be told"))
    for run_id, boxes in seen.boxes.items():
        pids = [pid for box in boxes for pid in box.pids]
        if not pids:
            continue
        run = seen.runs.get(run_id)
        if run is None or run.missing or run.unreadable:
            ages = [age for age in map(_age, pids[:64]) if age is not None]
            seen.ages[run_id] = max(ages, default=0.0)
            # The same path may be the home of another agentbox, in a container that is seen from here.
            seen.owners[run_id] = _owner_alive(pids) if pid_namespace(pids[0]) == own_ns else None
        elif _under_another_boot(seen, run):
            seen.pids_elsewhere.add(run_id)
        elif run.launcher is False and not uses_engine(run) and pid_namespace(pids[0]) not in (None, own_ns):
            # A container has a pid namespace of its own, and its launcher is outside of it.
            seen.pids_elsewhere.add(run_id)
    for run_id, run in seen.runs.items():
        if run.order is not None and run.order.word == "STOP" and seen.boxes.get(run_id):
            seen.stoppers[run_id] = _asker_alive(run.order)
        for task_id in run.allowances.keys() & run.run.tasks.keys():
            own = orders.read_order(home.run_dir(run_id).task_order(task_id))
            if own.word != "RUN":
                seen.held.add((run_id, task_id))
            if _is_missing(home.run_dir(run_id).beat(task_id)):
                seen.gateless.add((run_id, task_id))
            # Whoever was held is given the whole time again.
            times = [
                _mtime(home.run_dir(run_id).beat(task_id)),
                moment(own.at),
                moment(run.order.at if run.order else ""),
            ]
            seen.beats[run_id, task_id] = max((one for one in times if one is not None), default=0.0)


def _under_another_boot(seen: Survey, run: Recorded) -> bool:
    """Is every open task recorded under another boot id than this? No box outlives a boot, so one that is alive tells
    that the ids can't be compared: a container may hide the kernel's, and a service's /proc show it again.
    """
    boots = {task.boot_id for task in run.run.tasks.values() if task.state in ("intent", "started")}
    return bool(boots) and None not in boots and seen.boot not in boots


def _places(seen: Survey) -> list[Place]:
    found = []
    for run_id, boxes in seen.boxes.items():
        run = seen.runs.get(run_id)
        folder = run.run.cwd if run else None
        for box in boxes:
            for task, pids in box.tasks.items():
                if pids:
                    found.append(Place(run_id, task, True, folder, pids))
            if box.loose:
                found.append(Place(run_id, None, True, folder, box.loose))
    for stray in seen.strays:
        run = seen.runs.get(stray.run_id)
        pids = [stray.member.pid, *(member.pid for member in stray.below)]
        if stray.member.pid:
            found.append(Place(stray.run_id, stray.task_id, False, run.run.cwd if run else None, pids))
    return found


def _configurations(seen: Survey) -> Configurations:
    import pwd

    homes = [os.environ.get("HOME", "")]
    for uid in {os.geteuid(), *(stray.member.uid for stray in seen.strays)}:
        try:
            homes.append(pwd.getpwuid(uid).pw_dir if uid is not None else "")
        except KeyError:
            continue
    return Configurations(home for home in homes if home)


def _still(identities: tuple[Identity, ...]) -> bool:
    return any(one.alive() is not False for one in identities)


def _age(pid: int) -> float | None:
    stat = read_stat(pid)
    if stat is None:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start_ticks / os.sysconf("SC_CLK_TCK")


def _owner_alive(pids: list[int]) -> bool | None:
    """Is whoever started a box alive? False if the topmost process in it was left to init; else it can't be told."""
    members = set(pids)
    for pid in pids[:64]:
        stat = read_stat(pid)
        if stat is not None and stat.ppid not in members:
            if stat.ppid == 0:
                return None
            parent = read_stat(stat.ppid)
            if stat.ppid != 1 and (parent is None or parent.comm != "systemd"):
                return None
    return False


def _asker_alive(order: orders.Order) -> bool | None:
    """Is the process that ordered a stop still there to carry it out? None: the order does not name one."""
    words = order.by.split()
    number = words[words.index("pid") + 1] if "pid" in words[:-1] else ""
    if not (number.isascii() and number.isdigit()) or len(number) > 10:
        return None
    pid = int(number)
    identity = Identity.of(pid)
    if identity is None:
        return False if Identity(boot_id(), pid, 0).alive() is False else None
    ordered = moment(order.at)
    # A process that began after the order is another that got its number.
    return None if ordered is None else started_at(identity.start_ticks) <= ordered + 1


def _mtime(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def looked_again(home: Home, seen: Survey, run_ids: list[str]) -> list[Survey]:
    """Two fresh looks at single runs: their records then their boxes, and those boxes then their records again.

    Whatever a run did between the observers' looks of the first survey shows in one of the two: an end comes after
    the last process, a start's intent before its box.
    """
    found = []
    first = reread(home, run_ids)
    again = {run_id: [_again(seen, box) for box in seen.boxes.get(run_id, ())] for run_id in run_ids}
    boxes = {run_id: [box for box in found if box is not None] for run_id, found in again.items()}
    wanted = set(run_ids)
    servers = [one for one in seen.servers if one.run_id in wanted and _still(one.identities)]
    strays = [one for one in seen.strays if one.run_id in wanted and (not one.member.pid or _still(one.identities[:1]))]
    for runs in (first, reread(home, run_ids)):
        seen.not_asked += _read_unlike(seen.runs, runs)
        fresh = replace(seen, runs=runs, boxes=boxes, servers=servers, strays=strays, engine="")
        fresh.owners, fresh.ages, fresh.stoppers, fresh.beats = {}, {}, {}, {}
        fresh.pids_elsewhere, fresh.gateless, fresh.held = set(), set(), set()
        _facts(fresh)
        fresh.now, fresh.wall = time.monotonic(), time.time()
        found.append(fresh)
    return found


def _again(seen: Survey, box: SeenBox) -> SeenBox | None:
    """As `look_again`; a look that failed is noted, and has nothing to tell."""
    try:
        fresh = look_again(box)
    except OSError:
        fresh = replace(box, populated=None)
    if fresh is not None and fresh.path and fresh.populated is None:
        seen.not_asked.append(_untold(fresh))
    return fresh


def _untold(box: SeenBox) -> NotAsked:
    return NotAsked("cgroups", f"{box.path}: could not tell whether something lives in it")


def _read_unlike(before: dict[str, Recorded], after: dict[str, Recorded]) -> list[NotAsked]:
    """Records and orders that could be read at one look and not at another: the looks can't confirm each other."""
    both = [(run_id, before[run_id], run) for run_id, run in after.items() if run_id in before]
    found = [("records", run_id, one.unreadable, two.unreadable) for run_id, one, two in both]
    found += [("orders", run_id, _distrust(one), _distrust(two)) for run_id, one, two in both]
    return [NotAsked(what, f"run {run_id}: {a or b}") for what, run_id, a, b in found if bool(a) != bool(b)]


def _distrust(run: Recorded) -> str:
    """Why the run's order can't be trusted, or ""."""
    return "" if run.order is None or run.order.trusted else run.order.reason


def describe(seen: Survey) -> dict[str, Any]:
    """What `--json` says of the look itself."""
    return {"not_asked": [one.as_dict() for one in seen.not_asked], "not_inspectable": seen.blind}
