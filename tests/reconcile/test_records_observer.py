"""The quick reading of records tells what a whole reading tells, whatever stands in the file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.control.status import load
from sandbox.manifest.home import Home
from sandbox.manifest.record import encode, make
from sandbox.reconcile.records import QUICK_BYTES, read_run

EVENTS = ("task.intent", "task.started", "task.exited", "task.failed_to_start", "note", "stop.receipt", "control.set")


def line(event: str, task: str | None = None, **fields: Any) -> bytes:
    return encode(make("r1", event, task_id=task, by={"uid": 0, "pid": 1, "inside": False}, **fields) | {"prev": ""})


def home_with(folder: Path, data: bytes) -> Home:
    home = Home(str(folder / "home"))
    path = folder / "home" / "runs" / "r1"
    (path / "ctl").mkdir(parents=True, exist_ok=True)
    (path / "manifest.jsonl").write_bytes(data)
    (path / "ctl" / "control").write_text("RUN 1\n")
    return home


created = line("run.created", argv=["x"], cwd="/", backend="cgroup", main_task="main")
steps = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.sampled_from(["main", "a", "b"]), st.booleans()), min_size=0, max_size=25
)


@settings(max_examples=150, deadline=None)
@given(steps, st.booleans(), st.booleans())
def test_same_as_the_whole_fold(
    tmp_path_factory: pytest.TempPathFactory, events: Any, ended: bool, foreign: bool
) -> None:
    """`foreign`: written by hand, with blanks, so that each line is decoded."""
    lines = [created]
    for event, task, flag in events:
        lines.append(line(event, task, proof="empty" if flag else "alive", pid=7, start_ticks=9, outcome="exited"))
    if ended:
        lines.append(line("run.ended", code=0, outcome="exited"))
    if foreign:
        lines = [json.dumps(json.loads(one)).encode() + b"\n" for one in lines]
    home = home_with(tmp_path_factory.mktemp("r"), b"".join(lines))
    whole, bad = load(home, "r1")
    seen = read_run(home, "r1", whole=True)
    assert (seen.bad_count, bad) == (0, 0)
    assert {task.task_id: task.state for task in seen.run.tasks.values()} == {
        task.task_id: task.state for task in whole.tasks.values()
    }
    for task_id, task in whole.tasks.items():
        if task.state in ("intent", "started") or task_id == "main":
            assert (seen.run.tasks[task_id].pid, seen.run.tasks[task_id].ended_at) == (task.pid, task.ended_at)
    assert (seen.run.ended or {}).get("code") == (whole.ended or {}).get("code")
    assert read_run(home, "r1").ended == (ended or whole.ended is not None)


BAD = [b"{nonsense}\n", b"\xff\xfe\n", b"[]\n", b'{"run_id": "other"}\n', b'{"v":1,"ts":"cut', b"\0" * 10 + b"\n"]


@pytest.mark.parametrize("bad", BAD)
def test_bad_lines_are_counted_with_their_offset(bad: bytes, tmp_path: Path) -> None:
    started = line("task.started", "main", pid=7, start_ticks=9)
    data = created + bad + (started if bad.endswith(b"\n") else b"")
    seen = read_run(home_with(tmp_path, data), "r1")
    assert (seen.bad_count, seen.bad[0].offset) == (1, len(created))
    assert seen.run.created_at is not None
    assert ("main" in seen.run.tasks) == bad.endswith(b"\n")


def test_large_record_is_read_piece_by_piece(tmp_path: Path) -> None:
    notes = line("note", None, text="x" * 1000)
    many = QUICK_BYTES // len(notes) + 10
    data = created + notes * many + line("task.started", "main", pid=7, start_ticks=9)
    assert read_run(home_with(tmp_path, data), "r1").run.tasks["main"].pid == 7


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "link", "empty"])
def test_what_is_no_record(kind: str, tmp_path: Path) -> None:
    home = home_with(tmp_path, b"")
    path = Path(home.run_dir("r1").manifest)
    path.unlink()
    make_it = {
        "directory": lambda: path.mkdir(),
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to("/dev/zero"),
        "empty": lambda: path.touch(),
        "missing": lambda: None,
    }
    make_it[kind]()
    seen = read_run(home, "r1")
    assert seen.missing == (kind == "missing")
    assert bool(seen.unreadable) == (kind in ("directory", "fifo", "link"))


def test_end_that_something_was_started_after(tmp_path: Path) -> None:
    data = created + line("run.ended", code=0, outcome="exited") + line("task.intent", "b", argv=["x"])
    seen = read_run(home_with(tmp_path, data), "r1")
    assert seen.whole and seen.run.tasks["b"].state == "intent"
