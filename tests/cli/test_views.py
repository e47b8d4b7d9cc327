"""What `ps`, `inspect`, `tree` and `kill` print: stable JSON, and text that no agent can turn on a terminal."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.runs import inspect, one_line, records, row, run_dir, start, wait_pids
from tests.support import agentbox

pytestmark = pytest.mark.usefixtures("home", "bystander")

TEXT, NUMBER, WHOLE, FLAG = (str,), (int, float), (int,), (bool,)
NONE = (type(None),)
SUMMARY: dict[str, tuple[type, ...]] = {
    "run_id": TEXT,
    "state": TEXT,
    "why": TEXT,
    "backend": TEXT + NONE,
    "order": TEXT,
    "generation": WHOLE,
    "proof": TEXT,
    "launcher_alive": FLAG + NONE,
    "tasks": WHOLE,
    "processes": WHOLE + NONE,
    "cpu": NUMBER + NONE,
    "memory": WHOLE + NONE,
    "created_at": TEXT + NONE,
    "age": NUMBER + NONE,
    "labels": (dict,),
    "argv": (list,),
    "bad_records": WHOLE,
}
DETAIL: dict[str, tuple[type, ...]] = {
    **SUMMARY,
    "cwd": TEXT + NONE,
    "parent_run": TEXT + NONE,
    "main_task": TEXT,
    "detached": FLAG + NONE,
    "on_exit": TEXT + NONE,
    "timeout": NUMBER + NONE,
    "reason": TEXT,
    "order_trusted": FLAG,
    "oom_kills": WHOLE + NONE,
    "task_list": (list,),
    "boxes": (list,),
    "receipts": (list,),
    "notes": (list,),
    "ended": (dict, *NONE),
}
RECEIPT: dict[str, tuple[type, ...]] = {
    "run_id": TEXT,
    "task_id": TEXT + NONE,
    "reason": TEXT,
    "asked_by": TEXT,
    "proof": TEXT,
    "ordered_at": TEXT,
    "frozen_at": TEXT + NONE,
    "empty_at": TEXT + NONE,
    "processes": (list,),
    "survivors": (list,),
    "rungs": (list,),
    "warnings": (list,),
    "from_inside": FLAG,
    "gone_in_grace": WHOLE,
}
PROCESS = {"pid", "start_ticks", "comm", "argv", "cwd", "state", "ppid", "age", "uid", "cgroup"}


def conforms(value: dict[str, Any], schema: dict[str, tuple[type, ...]]) -> None:
    """All documented fields are there, with their types; more may be."""
    assert not schema.keys() - value.keys()
    for name, types in schema.items():
        assert type(value[name]) in types, (name, value[name])


class TestForm:
    """`--json` output is stable: fields, types, one value on stdout and nothing else."""

    def test_ps(self) -> None:
        run = start("sleep", "900", options=("--label", "project=web", "--label", "text=a b=c"))
        (one,) = json.loads(agentbox("ps", "--json", check=0).stdout)
        conforms(one, SUMMARY)
        assert (one["run_id"], one["argv"], one["tasks"], one["processes"]) == (run, ["sleep", "900"], 1, 1)
        assert one["labels"] == {"project": "web", "text": "a b=c"}
        assert 0 <= one["age"] < 3600 and one["proof"] == "alive" and one["launcher_alive"] is True
        agentbox("kill", run, check=0)
        conforms(row(run), SUMMARY)

    def test_no_run_at_all(self) -> None:
        assert json.loads(agentbox("ps", "--json", check=0).stdout) == []
        assert agentbox("ps", "-q", check=0).stdout == ""
        assert agentbox("ps", check=0).stdout.split()[:2] == ["RUN", "STATE"]
        assert agentbox("kill", "--all", check=0).stdout.startswith("nothing is alive of ")
        assert json.loads(agentbox("kill", "--all", "--json", check=0).stdout) == []

    def test_ended_runs_are_shown_if_asked_for(self) -> None:
        ended, live = start("true"), start("sleep", "900")
        agentbox("wait", ended, check=0)
        assert agentbox("ps", "-q", check=0).stdout.split() == [live]
        assert sorted(agentbox("ps", "-a", "-q", check=0).stdout.split()) == sorted([ended, live])
        assert {one["run_id"] for one in json.loads(agentbox("ps", "--json", check=0).stdout)} == {live}
        agentbox("kill", live, check=0)

    def test_inspect(self) -> None:
        run = start("sleep", "900", options=("--timeout", "1h"))
        agentbox("spawn", "-d", run, "--task", "t", "--", "sleep", "901", check=0)
        one = inspect(run)
        conforms(one, DETAIL)
        assert one["timeout"] == 3600.0 and one["detached"] is True and one["on_exit"] == "kill"
        assert [task["task_id"] for task in one["task_list"]] == ["main", "t"]
        (box,) = one["boxes"]
        assert box["populated"] == "alive" and Path(box["cgroup"]).stat().st_ino == box["cgroup_inode"]
        assert [process["argv"] for process in box["processes"]] == [["sleep", "900"], ["sleep", "901"]]
        assert all(set(process) >= PROCESS for process in box["processes"])
        agentbox("kill", run, check=0)
        one = inspect(run)
        conforms(one, DETAIL)
        assert one["receipts"][0]["proof"] == "empty" and one["ended"]["outcome"] == "killed"

    def test_kill(self) -> None:
        run = start("sleep", "900")
        (receipt,) = json.loads(agentbox("kill", run, "--json", "--reason", "enough", check=0).stdout)
        conforms(receipt, RECEIPT)
        assert receipt["reason"] == "enough" and receipt["survivors"] == []
        assert [set(process) >= PROCESS for process in receipt["processes"]] == [True]
        times = [receipt["ordered_at"], receipt["frozen_at"], receipt["empty_at"]]
        assert times == sorted(times)
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", time) for time in times)
        assert [rung["rung"] for rung in receipt["rungs"]] == ["order", "kill"]

    def test_columns(self) -> None:
        run = start("sleep", "900")
        header, line = agentbox("ps", check=0).stdout.splitlines()
        assert header.split() == ["RUN", "STATE", "BACKEND", "TASKS", "PROCS", "CPU", "MEMORY", "AGE", "COMMAND"]
        words = line.split()
        assert (words[0], words[1], words[3], words[4]) == (run, "running", "1", "1")
        assert line.endswith("sleep 900")
        agentbox("kill", run, check=0)

    def test_tree(self) -> None:
        run = start("sh", "-c", "sleep 901 & sleep 902 & wait")
        wait_pids(run, 3)
        lines = agentbox("tree", run, check=0).stdout.splitlines()
        assert lines[0] == f"{run} running" and lines[1].split()[0] == "main"
        assert [line.split()[-2:] for line in lines[3:]] == [["sleep", "901"], ["sleep", "902"]]
        indents = [len(line) - len(line.lstrip()) for line in lines]
        assert indents[2] < indents[3] == indents[4]
        agentbox("kill", run, check=0)

    def test_prefix_selects(self) -> None:
        run = start("sleep", "900")
        assert inspect(run[:-1])["run_id"] == run
        agentbox("kill", run, check=0)


HOSTILE = [
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x9b31m",
    "a\nb\r\n",
    "\b\b\b",
    "\u202egnp.exe",
    "\x7f",
    "\u2028",
    "\xad",
    "a\tb",
]


class TestHostileText:
    """What an agent wrote into its argv, its name or its files never reaches a terminal as it is."""

    @pytest.fixture
    def run(self, tmp_path: Path) -> Iterator[str]:
        program = tmp_path / "\x1b[31mred\x1b[0m"
        program.write_text("#!/bin/sh\nsleep 901 & exec sleep 902\n")
        program.chmod(0o755)
        name = start(os.fsdecode(bytes(program)), *HOSTILE, os.fsdecode(b"\xff\xfe"))
        wait_pids(name, 2)
        script = f"exec -a '{HOSTILE[0]}' sleep 903"
        agentbox("spawn", "-d", name, "--task", "t", "--", "bash", "-c", script, check=0)
        wait_pids(name, 3)
        yield name
        agentbox("kill", name)

    @staticmethod
    def clean(text: str) -> None:
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)

    def test_views_and_receipt(self, run: str) -> None:
        lines = {"ps": 2, "tree": 6}
        for verb, count in lines.items():
            text = agentbox(*((verb, run) if verb == "tree" else (verb,)), check=0).stdout
            self.clean(text)
            assert len(text.splitlines()) == count, text
        for args in (("ps", "--json"), ("inspect", run), ("manifest", run)):
            assert agentbox(*args, check=0).stdout.replace("\n", "").isprintable()
        text = agentbox("kill", run, check=0).stdout
        self.clean(text)
        assert len(text.splitlines()) == 4, text

    def test_argv_is_kept_to_the_byte_in_the_record(self, run: str) -> None:
        (created,) = records(run, "run.created")
        assert created["argv"][1:-1] == HOSTILE
        assert os.fsencode(created["argv"][-1]) == b"\xff\xfe"

    def test_order_of_an_agent(self, run: str) -> None:
        """The agent of a cgroup box can write to its order file; what it writes there is only text."""
        (run_dir(run) / "ctl/control").write_bytes(b"STOP 9\nreason: \x1b[2Jgone\x07 \xe2\x80\xae\xff\n")
        self.clean(one_line(agentbox("spawn", run, "--", "true", check=75)))
        for args in (("tree", run), ("ps",), ("kill", run)):
            done = agentbox(*args)
            self.clean(done.stdout + done.stderr)

    def test_record_of_an_agent(self, run: str) -> None:
        path = run_dir(run) / "manifest.jsonl"
        with open(path, "ab") as file:
            file.write(b'{"prev": null, "unlocked": "\\u001b[2J", "event": "note", "run_id": "%s"}\n' % run.encode())
            file.write(b"\x1b[2J\n")
        for args in (("verify", run), ("ps",), ("tree", run)):
            done = agentbox(*args)
            self.clean(done.stdout + done.stderr)

    def test_leftovers_line(self, tmp_path: Path) -> None:
        script = f"(exec -a '{HOSTILE[1]}' sleep 904) & until read n < /proc/$!/comm && [ $n = sleep ]; do :; done"
        done = agentbox("run", "--", "bash", "-c", script, check=0)
        self.clean(done.stderr)
        assert "2J" in done.stderr.splitlines()[1]

    def test_labels_and_reason(self) -> None:
        run = start("sleep", "900", options=("--label", f"k={HOSTILE[1]}"))
        assert row(run)["labels"] == {"k": HOSTILE[1]}
        done = agentbox("kill", run, "--reason", HOSTILE[1] + "\n" + HOSTILE[0], check=0)
        self.clean(done.stdout)
        self.clean(agentbox("tree", run, check=0).stdout)
        (receipt,) = records(run, "stop.receipt")[-1:]
        assert HOSTILE[1] in receipt["reason"]
