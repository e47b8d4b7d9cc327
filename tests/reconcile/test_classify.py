"""The rules, as a table: what was seen, and which finding (if any) it makes, and whether --kill would end it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sandbox.control.orders import Order
from sandbox.kernel.identity import boot_id
from sandbox.kernel.procfs import Member
from sandbox.manifest.fold import Process, Run, Task
from sandbox.reconcile.boxes import SeenBox
from sandbox.reconcile.classify import classify, confirmed
from sandbox.reconcile.findings import KINDS, SEVERITY, Finding
from sandbox.reconcile.mcp import Recognised
from sandbox.reconcile.records import Recorded
from sandbox.reconcile.servers import Server
from sandbox.reconcile.strays import Stray
from sandbox.reconcile.survey import Survey

BOOT, HOST = boot_id(), os.uname().nodename
RUN = Order("RUN", 1)
STOP = Order("STOP", 2, "asked for", "uid 0 pid 7", "2026-01-01T00:00:00.000000Z")


@dataclass
class Case:
    """A run's facts. `box`: does its main box live (None: there is none). `main`: the state of its main task."""

    main: str = "started"
    box: bool | None = True
    launcher: bool | None = True
    main_alive: bool | None = True
    order: Order = RUN
    asker: bool | None = None
    missing: bool = False
    ended: dict[str, Any] | None = None
    on_exit: str = "kill"
    owner: bool | None = None
    age: float = 0.0
    ours: bool | None = True
    boot: str = BOOT
    host: str = HOST
    elsewhere: bool = False
    timeout: float | None = None
    backend: str = "cgroup"
    engine: str = ""
    emergency: str = ""
    boxes_seen: bool = True
    receipts: list[dict[str, Any]] = field(default_factory=list)
    populated_unknown: bool = False
    began: float = 900.0

    def survey(self) -> Survey:
        seen = Survey("/no/home", boot=BOOT, host=HOST, now=1000.0, wall=2e9, engine=self.engine)
        seen.emergency, seen.boxes_seen = self.emergency, self.boxes_seen
        seen.runs["r"] = self._recorded()
        if self.box is not None:
            seen.boxes["r"] = [self._box()]
        seen.stoppers["r"] = self.asker
        seen.owners["r"], seen.ages["r"] = self.owner, self.age
        if self.elsewhere:
            seen.pids_elsewhere.add("r")
        return seen

    def _recorded(self) -> Recorded:
        if self.missing:
            return Recorded("r", missing=True, order=self.order)
        task = Task("main", self.main, pid=5, start_ticks=5, launcher=Process(4, 4), boot_id=self.boot, host=self.host)
        run = Run("r", "2026-01-01T00:00:00Z", host=self.host, boot_id=self.boot, on_exit=self.on_exit)
        run.tasks, run.timeout, run.backend, run.receipts = {"main": task}, self.timeout, self.backend, self.receipts
        run.ended = self.ended
        seen = Recorded("r", run, order=self.order, monos={"main": self.began})
        seen.launchers, seen.main_alive = {"main": self.launcher}, self.main_alive
        return seen

    def _box(self) -> SeenBox:
        populated = None if self.populated_unknown else bool(self.box)
        return SeenBox("cgroup", "r", "/cg/agentbox/r", 9, self.ours, populated, {"main": [5] if self.box else []})


def found(case: Case) -> list[tuple[str, str]]:
    return [(one.kind, one.remedy.how if one.remedy else "") for one in classify(case.survey())]


DEAD: dict[str, Any] = {"launcher": False, "main_alive": False}
TABLE: dict[str, tuple[Case, list[tuple[str, str]]]] = {
    "live": (Case(), []),
    "live, launcher can't be told": (Case(launcher=None), []),
    "launcher gone": (Case(launcher=False), [("orphan", "stop")]),
    "launcher gone, in another pid namespace": (Case(launcher=False, elsewhere=True), []),
    "launcher gone, on another host": (Case(launcher=False, host="other"), []),
    "starting": (Case(main="intent"), []),
    "starting, and a stop is ordered": (Case(main="intent", order=STOP, asker=False), []),
    "starting, launcher can't be told, young": (Case(main="intent", launcher=None, began=990.0), []),
    "starting, launcher can't be told, old": (Case(main="intent", launcher=None), []),
    "start given up": (Case(main="intent", launcher=False), [("orphan", "stop")]),
    "stop under way": (Case(order=STOP, asker=True), []),
    "stop, asker gone": (Case(order=STOP, asker=False), [("stopped_alive", "stop")]),
    "stop, asker can't be told, long ago": (Case(order=STOP), [("stopped_alive", "stop")]),
    "stop, asker can't be told, just now": (Case(order=replace(STOP, at="2033-05-18T03:33:00Z")), []),
    "order is not to be trusted": (Case(order=replace(STOP, trusted=False, by="")), [("stopped_alive", "stop")]),
    "emergency stop": (Case(emergency="the file"), [("stopped_alive", "stop")]),
    "main ended, its launcher is about to clean up": (Case(main="exited"), []),
    "main ended, others live": (Case(main="exited", launcher=False), [("leftovers", "stop")]),
    "main ended, kept": (Case(main="exited", launcher=False, on_exit="leave"), [("leftovers", "")]),
    "main ended, launcher's own stop": (
        Case(main="exited", launcher=False, order=replace(STOP, by="launcher pid 4 uid 0"), asker=False),
        [("leftovers", "stop")],
    ),
    "expired": (Case(timeout=60.0), [("expired", "stop")]),
    "within its time": (Case(timeout=90.0), []),
    "paused beyond its time": (Case(timeout=60.0, order=Order("PAUSE", 2)), []),
    "expired by the clock of another boot": (Case(timeout=60.0, boot="other"), []),
    "ended and gone": (Case(box=None, main="exited", ended={"outcome": "exited"}, **DEAD), []),
    "ended, box left": (
        Case(box=False, main="exited", ended={"outcome": "exited"}, **DEAD),
        [("leftover_cgroup", "remove")],
    ),
    "ended, launcher about to remove the box": (Case(box=False, main="exited", ended={"outcome": "exited"}), []),
    "lost": (Case(box=None, **DEAD), [("lost", "close")]),
    "lost, box left": (Case(box=False, **DEAD), [("leftover_cgroup", "remove"), ("lost", "close")]),
    "lost at a reboot": (Case(box=None, boot="other", **DEAD), [("lost", "close")]),
    "lost, recorded": (Case(box=None, ended={"outcome": "lost"}, **DEAD), []),
    "gone, launcher can't be told": (Case(box=None, launcher=None), []),
    "gone, launcher lives": (Case(box=None), []),
    "killed, proven": (Case(box=None, order=STOP, receipts=[{"proof": "empty"}], **DEAD), []),
    "cgroups could not be asked": (Case(box=None, boxes_seen=False, **DEAD), []),
    "populated could not be told": (Case(box=False, populated_unknown=True, **DEAD), []),
    "container, engine away": (
        Case(box=None, backend="docker", engine="away", **DEAD),
        [("engine_unreachable", "")],
    ),
    "no record, live": (Case(missing=True), [("unknown_box", "")]),
    "no record, owner dead, old": (Case(missing=True, owner=False, age=100.0), [("unknown_box", "stop")]),
    "no record, owner dead, young": (Case(missing=True, owner=False, age=10.0), [("unknown_box", "")]),
    "no record, owner can't be told, old": (Case(missing=True, age=1e6), [("unknown_box", "")]),
    "no record, empty": (Case(missing=True, box=False), [("leftover_cgroup", "remove")]),
    "no record, no mark": (Case(missing=True, ours=None, owner=False, age=1e6), [("unknown_box", "")]),
    "no record, no mark, empty": (Case(missing=True, ours=None, box=False), []),
}


@pytest.mark.parametrize("name", TABLE)
def test_table(name: str) -> None:
    case, wanted = TABLE[name]
    order = sorted(found(case))
    assert order == sorted(wanted)
    assert sorted(found(case)) == order


def member(pid: int, **more: Any) -> Member:
    return Member(pid, pid, "x", ["x"], "/", "S", 1, more.pop("age", 100.0), 0)


def server(pid: int = 5, **more: Any) -> Server:
    fields: dict[str, Any] = {"inside": True, "writer": True, "command": ("x",), **more}
    age = fields.pop("age", 100.0)
    recognised = Recognised("s", "command shape")
    return Server(
        "r",
        "main",
        fields.pop("inside"),
        recognised,
        pid,
        [member(pid, age=age)],
        command=fields.pop("command"),
        **fields,
    )


def stray(pid: int = 77, **more: Any) -> Stray:
    return Stray("r", "main", member(pid), more.pop("evidence", {"environment": "x"}), **more)


OVER = Case(launcher=False)
KEPT = Case(main="exited", launcher=False, on_exit="leave")
SERVERS: dict[str, tuple[Case, list[Server], list[Stray], list[tuple[str, str]]]] = {
    "live, talked to": (Case(), [server()], [], []),
    "live, nobody talks to it": (Case(), [server(writer=False)], [], [("ghost", "processes")]),
    "live, could not tell": (Case(), [server(writer=None)], [], []),
    "live, too young to judge": (Case(), [server(writer=False, age=0.5)], [], []),
    "starting": (Case(main="intent"), [server(writer=False)], [], []),
    "run over, all of it ghosts": (OVER, [server()], [], [("ghost", "stop")]),
    "run over, others live too": (OVER, [server(6)], [], [("ghost", "stop"), ("orphan", "stop")]),
    "kept, talked to": (KEPT, [server()], [], [("leftovers", "")]),
    "kept, nobody talks to it": (KEPT, [server(writer=False)], [], [("ghost", "processes")]),
    "two of a kind, live": (Case(), [server(5), server(6)], [], [("duplicate_mcp", "")]),
    "two of different kinds": (Case(), [server(5), server(6, command=("y",))], [], []),
    "outside by its mark, run live": (Case(), [server(77, inside=False)], [stray()], [("escapee", "")]),
    "outside by its mark, run over": (
        Case(box=None, ended={"outcome": "exited"}, main="exited", **DEAD),
        [server(77, inside=False)],
        [stray()],
        [("ghost", "")],
    ),
    "outside, proven, run over": (
        Case(box=None, ended={"outcome": "exited"}, main="exited", **DEAD),
        [server(77, inside=False)],
        [stray(proven=True)],
        [("ghost", "processes")],
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers(name: str) -> None:
    case, servers, strays, wanted = SERVERS[name]
    seen = case.survey()
    seen.servers, seen.strays = servers, strays
    assert sorted((one.kind, one.remedy.how if one.remedy else "") for one in classify(seen)) == sorted(wanted)


@pytest.mark.parametrize(
    ("case", "proven", "remedy"),
    [(Case(), True, ""), (Case(), False, ""), (OVER, True, "processes"), (OVER, False, "")],
)
def test_escapees(case: Case, proven: bool, remedy: str) -> None:
    seen = case.survey()
    seen.strays = [stray(proven=proven)]
    (one,) = [one for one in classify(seen) if one.kind == "escapee"]
    assert (one.remedy.how if one.remedy else "") == remedy


def test_weak_evidence_is_information() -> None:
    seen = Case().survey()
    seen.strays = [stray(evidence={"door": "started by tmux"})]
    assert [one.severity for one in classify(seen)] == ["info"]


def test_single_tasks() -> None:
    seen = Case().survey()
    run, (box,) = seen.runs["r"], seen.boxes["r"]
    box.tasks |= {"a": [11], "b": [12], "c": [13], "x": [14], "a.launcher": [15], "idle": []}
    run.run.tasks |= {
        "a": Task("a", "started", boot_id=BOOT),
        "b": Task("b", "exited"),
        "c": Task("c", "started", boot_id=BOOT),
    }
    run.launchers |= {"a": True, "c": False}
    assert [(one.kind, one.task_id) for one in classify(seen)] == [
        ("orphan", "b"),
        ("orphan", "c"),
        ("unknown_box", "x"),
    ]


def test_only_what_every_look_confirms_stays() -> None:
    orphaned, live = classify(OVER.survey()), Case().survey()
    assert confirmed(orphaned, [OVER.survey(), OVER.survey()]) == orphaned
    assert confirmed(orphaned, [OVER.survey(), live]) == []
    assert confirmed(orphaned, [live, OVER.survey()]) == []


def test_each_kind_has_a_severity_and_each_finding_its_fields() -> None:
    assert set(KINDS) == set(SEVERITY)
    (one,) = classify(OVER.survey())
    assert isinstance(one, Finding)
    keys = ["kind", "severity", "run_id", "task_id", "what", "since", "evidence", "command"]
    assert list(one.as_dict()) == keys
