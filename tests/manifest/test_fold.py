"""State is a fold over the records, whatever is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandbox.manifest.fold import Box, Process, fold
from sandbox.manifest.reader import read
from sandbox.manifest.record import EVENTS, make
from sandbox.manifest.writer import Writer

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["main", "w1", "STOP", "r1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    "v", "ts", "mono", "boot_id", "host", "run_id", "by", "prev", "argv", "cwd", "backend", "labels", "pid",
    "start_ticks", "box", "launcher", "code", "signal", "outcome", "leftovers", "timeout", "detached", "started_at",
]  # fmt: skip
HOSTILE = st.builds(
    lambda event, task, rest: {**rest, "event": event, "task_id": task},
    st.sampled_from(EVENTS) | ANY,
    st.sampled_from(["main", "w1", "../x", "", None]) | ANY,
    st.dictionaries(st.sampled_from(NAMES), ANY, max_size=8),
)


def records(*events: tuple[str, str | None, dict[str, Any]]) -> list[dict[str, Any]]:
    return [make("r1", event, task_id=task, **fields) | {"prev": ""} for event, task, fields in events]


def test_a_run_from_its_birth_to_its_end(tmp_path: Path) -> None:
    path = str(tmp_path / "manifest.jsonl")
    writer = Writer(path, "r1")
    box = {"backend": "cgroup", "id": "r1/main", "cgroup": "/agentbox/r1/main", "cgroup_inode": 42}
    created = writer.append(
        "run.created", argv=["sh"], cwd="/w", backend="cgroup", labels={"a": "b", "n": 1}, parent_run="r0",
        detached=True, on_exit="kill", timeout=7200, version="0.1.0",
    )  # fmt: skip
    writer.append("task.intent", task_id="main", argv=["sh"], backend="cgroup", launcher={"pid": 5, "start_ticks": 6})
    assert fold(read(path)).tasks["main"].state == "intent"
    writer.append("task.started", task_id="main", pid=7, start_ticks=8, box=box, branch="b", argv=["sh"])
    writer.append("control.set", order="STOP", generation=2, reason="enough")
    writer.append("stop.rung", rung="kill", at="now", processes=1)
    writer.append("task.exited", task_id="main", code=None, signal=9, outcome="killed", leftovers=[])
    writer.append("stop.receipt", proof="empty", processes=[], survivors=[])
    writer.append("run.ended", code=137, outcome="killed")
    run = fold(read(path))
    assert (run.run_id, run.created_at, run.argv, run.cwd, run.backend) == ("r1", created["ts"], ["sh"], "/w", "cgroup")
    assert (run.labels, run.parent_run, run.detached, run.on_exit) == ({"a": "b"}, "r0", True, "kill")
    assert (run.timeout, run.version, run.records, run.unknown) == (7200.0, "0.1.0", 8, 0)
    task = run.tasks["main"]
    assert (task.state, task.pid, task.start_ticks, task.outcome, task.signal) == ("exited", 7, 8, "killed", 9)
    assert task.box == Box("cgroup", "r1/main", "/agentbox/r1/main", 42) and task.launcher == Process(5, 6)
    assert task.boot_id == created["boot_id"] and task.branch == "b" and task.earlier == []
    assert [order["order"] for order in run.orders] == ["STOP"] and run.receipts[0]["proof"] == "empty"
    assert run.rungs[0]["rung"] == "kill" and run.ended is not None and run.ended["code"] == 137


def test_a_start_that_failed() -> None:
    run = fold(records(("task.intent", "a", {}), ("task.failed_to_start", "a", {"why": "stop", "code": 75})))
    assert (run.tasks["a"].state, run.tasks["a"].why, run.tasks["a"].code) == ("failed", "stop", 75)


def test_one_task_id_started_twice_keeps_both_boxes() -> None:
    run = fold(
        records(
            ("task.started", "a", {"pid": 1}), ("task.started", "a", {"pid": 2}), ("task.intent", "a", {}),
            ("task.started", "a", {"pid": 3}),
        )
    )  # fmt: skip
    assert run.tasks["a"].pid == 3 and [task.pid for task in run.tasks["a"].earlier] == [1, 2]


def test_a_task_that_ended_and_was_started_again_is_no_duplicate() -> None:
    run = fold(
        records(
            ("task.started", "a", {"pid": 1}), ("task.exited", "a", {"code": 0}), ("task.intent", "a", {}),
            ("task.started", "a", {"pid": 2}),
        )
    )  # fmt: skip
    assert (run.tasks["a"].state, run.tasks["a"].pid, run.tasks["a"].earlier) == ("started", 2, [])


def test_fields_of_a_wrong_type_count_as_missing() -> None:
    hostile = {
        "event": "task.started", "task_id": "a", "pid": True, "start_ticks": -1, "box": [1], "argv": {"a": 1},
        "launcher": "x", "started_at": 5, "boot_id": {}, "detached": "yes",
    }  # fmt: skip
    task = fold([hostile]).tasks["a"]
    assert (task.pid, task.start_ticks, task.box, task.argv, task.launcher) == (None, None, None, [], None)
    assert (task.started_at, task.boot_id, task.detached) == (None, None, None)


def test_a_task_id_that_is_a_path_makes_no_task() -> None:
    run = fold([{"event": "task.started", "task_id": "../../etc", "pid": 1}])
    assert run.tasks == {} and run.unknown == 1


@given(st.lists(HOSTILE, max_size=12))
def test_fold_never_raises_and_repeated_records_change_nothing(hostile: list[dict[str, Any]]) -> None:
    once = fold(hostile)
    assert fold(hostile) == once
    assert fold(hostile + hostile) == once
    assert fold([record for record in hostile for _ in range(2)]) == once


@given(st.lists(HOSTILE, max_size=6))
def test_fold_does_not_change_its_records(hostile: list[dict[str, Any]]) -> None:
    before = json.dumps(hostile)
    fold(hostile)
    assert json.dumps(hostile) == before
