"""What `ps` and `inspect` say of a run: each state, brought about for real, and the form of what they print."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.control.orders import write_order
from tests.cli.mounts import Hung, own_mounts
from tests.cli.runs import gone, inspect, one_line, pids_of, records, row, run_dir, start, wait_pids
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("home", "bystander")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def control(run: str) -> str:
    return str(run_dir(run) / "ctl/control")


def launcher_of(run: str) -> int:
    return int(records(run, "task.intent")[0]["launcher"]["pid"])


def stop_while_starting(run: str) -> subprocess.Popen[bytes]:
    """Start a run in the foreground, its launcher held by SIGSTOP after its intent is recorded and before the start is.

    The launcher is let go on for a moment at a time, far shorter than what lies between the two.
    """
    launcher = subprocess.Popen(
        agentbox_argv("run", "--run-id", run, "--", "sleep", "900"), env=agentbox_env(), stderr=subprocess.DEVNULL
    )
    path = run_dir(run) / "manifest.jsonl"
    while b'"task.intent"' not in (path.read_bytes() if path.exists() else b""):
        launcher.send_signal(signal.SIGCONT)
        signal.sigtimedwait([], 0.0002)
        launcher.send_signal(signal.SIGSTOP)
        wait_for(lambda: f"/proc/{launcher.pid}/stat" and _state(launcher.pid) in "TZ")
    assert b'"task.started"' not in path.read_bytes()
    return launcher


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class TestStates:
    def test_starting(self, run_id: str) -> None:
        launcher = stop_while_starting(run_id)
        assert row(run_id)["state"] == "starting"
        launcher.send_signal(signal.SIGCONT)
        wait_for(lambda: row(run_id)["state"] == "running")
        agentbox("kill", run_id, check=0)
        assert launcher.wait(30) == 137

    def test_starting_and_killed(self, run_id: str, bystander: subprocess.Popen[bytes]) -> None:
        launcher = stop_while_starting(run_id)
        agentbox("kill", run_id, check=0)
        assert launcher.wait(30) == 75
        assert not pids_of(run_id)
        assert row(run_id)["state"] in ("not started", "stopped")
        assert not records(run_id, "task.started")

    def test_running_and_paused(self) -> None:
        run = start("sleep", "900")
        assert (row(run)["state"], row(run)["order"]) == ("running", "RUN")
        write_order(control(run), "PAUSE", reason="a look")
        assert (row(run)["state"], row(run)["order"]) == ("paused", "PAUSE")
        write_order(control(run), "RUN")
        assert (row(run)["state"], row(run)["generation"]) == ("running", 3)
        agentbox("kill", run, check=0)

    def test_running_without_its_launcher(self) -> None:
        run = start("sleep", "900")
        os.kill(launcher_of(run), signal.SIGKILL)
        wait_for(lambda: not is_alive(launcher_of(run)))
        one = row(run)
        assert (one["state"], one["launcher_alive"], one["processes"]) == ("running", False, 1)
        assert f"{run} " in (text := agentbox("ps", check=0).stdout) and "launcher gone" in text
        agentbox("kill", run, check=0)
        assert (row(run)["state"], gone(run)) == ("stopped", True)

    def test_leftovers(self) -> None:
        run = start("sh", "-c", "sleep 901 & exit 3", options=("--on-exit", "leave"))
        wait_for(lambda: row(run)["state"] == "leftovers")
        assert row(run)["processes"] == 1
        agentbox("kill", run, check=0)
        assert row(run)["state"] in ("stopped", "exited")
        agentbox("wait", run, check=3)

    def test_stopping(self) -> None:
        """The order stands and its processes live."""
        run = start("sleep", "900")
        write_order(control(run), "STOP")
        assert row(run)["state"] == "stopping"
        agentbox("kill", run, check=0)
        assert row(run)["state"] == "stopped"

    def test_exited_and_stopped(self) -> None:
        run = start("sh", "-c", "exit 3")
        agentbox("wait", run, check=3)
        assert (row(run)["state"], row(run)["why"]) == ("exited", "code 3")
        run = start("sleep", "900")
        agentbox("kill", run, "--reason", "enough", check=0)
        assert (row(run)["state"], row(run)["why"]) == ("stopped", "enough")

    def test_lost(self) -> None:
        run = start("sleep", "900")
        (main,) = pids_of(run)
        for pid in (launcher_of(run), main):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: row(run)["state"] == "lost")
        assert "no exit was recorded" in row(run)["why"]
        agentbox("wait", run, check=125)
        agentbox("kill", run, check=0)
        assert gone(run)

    def test_lost_at_reboot(self, bystander: subprocess.Popen[bytes]) -> None:
        """Pids of another boot are somebody else's now: nothing is signalled."""
        run = start("sleep", "900")
        (main,) = pids_of(run)
        for pid in (launcher_of(run), main):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: row(run)["state"] == "lost")
        path = run_dir(run) / "manifest.jsonl"
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        text = path.read_text().replace(boot, "0" * 8 + boot[8:])
        for pid in {main, launcher_of(run)}:
            text = text.replace(f'"pid":{pid},', f'"pid":{bystander.pid},')
        path.write_text(text)
        assert (row(run)["state"], row(run)["why"]) == ("lost", "lost at reboot")
        assert row(run)["launcher_alive"] is False
        agentbox("kill", run, check=0)
        assert is_alive(bystander.pid)

    def test_not_started(self, tmp_path: Path, run_id: str) -> None:
        path = tmp_path / "x"
        path.write_text("#!/no/such/interpreter\n")
        path.chmod(0o755)
        agentbox("run", "--run-id", run_id, "--", str(path), check=127)
        assert row(run_id)["state"] == "not started"
        assert agentbox("ps", "-q", check=0).stdout == ""

    def test_unknown(self) -> None:
        """The record of a run that has no process is unreadable: nobody can tell what it was."""
        run = start("sh", "-c", "exit 3")
        agentbox("wait", run, check=3)
        path = run_dir(run) / "manifest.jsonl"
        path.unlink()
        path.mkdir()
        one = row(run)
        assert one["state"] == "unknown" and "record" in one["why"]
        assert run in agentbox("ps", "-q", check=0).stdout.split()

    @ROOT
    def test_unknown_without_cgroups(self) -> None:
        run = start("sleep", "900")
        argv = ["unshare", "-m", "sh", "-c", 'umount -l /sys/fs/cgroup && exec "$@"', "sh"]
        done = subprocess.run(
            [*argv, *agentbox_argv("ps", "--json")], env=agentbox_env(), capture_output=True, text=True, timeout=60
        )
        (one,) = json.loads(done.stdout)
        assert (one["state"], one["proof"]) == ("unknown", "unknown")
        assert row(run)["state"] == "running"
        agentbox("kill", run, check=0)

    def test_unreadable_order_counts_as_stop(self) -> None:
        run = start("sleep", "900")
        Path(control(run)).write_text("GO ON 7\n")
        one = row(run)
        assert (one["state"], one["order"]) == ("stopping", "STOP")
        assert "no trustworthy order" in one["why"]
        agentbox("kill", run, check=0)


@ROOT
class TestKillPending:
    """A process that SIGKILL does not end: it waits in the kernel for a file system that never answers."""

    @pytest.fixture
    def hung(self, tmp_path: Path) -> Iterator[Hung]:
        (tmp_path / "mnt").mkdir()
        with own_mounts():
            try:
                file_system = Hung(tmp_path / "mnt")
            except OSError as error:
                pytest.skip(f"no FUSE here: {error}")
            try:
                yield file_system
            finally:
                file_system.close()

    @pytest.mark.may_skip("a kernel without FUSE")
    def test_survivors_are_named_and_the_stop_is_not_said_to_be_done(
        self, hung: Hung, bystander: subprocess.Popen[bytes]
    ) -> None:
        run = start("sh", "-c", f"sleep 901 & cat {hung.path}/file & wait")
        pids = wait_pids(run, 3)
        wait_for(lambda: hung.requests)
        text = agentbox("kill", run, check=1).stdout
        (receipt,) = records(run, "stop.receipt")
        assert receipt["proof"] == "alive" and receipt["empty_at"] is None
        (survivor,) = receipt["survivors"]
        assert survivor["pid"] in pids and survivor["argv"] == ["cat", f"{hung.path}/file"]
        assert survivor["state"].startswith("D (")
        assert "survivors" in text and f"{survivor['pid']} D (" in text
        assert [pid for pid in pids if is_alive(pid)] == [survivor["pid"]]
        one = row(run)
        assert (one["state"], one["proof"], one["processes"]) == ("kill_pending", "alive", 1)
        hung.close()
        wait_for(lambda: not is_alive(survivor["pid"]))
        agentbox("kill", run, check=0)
        assert (row(run)["state"], gone(run)) == ("stopped", True)
        agentbox("wait", run, check=137)


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
        assert agentbox("kill", "--all", check=0).stdout == ""
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
        assert inspect(run[:8])["run_id"] == run or len(agentbox("ps", "-q").stdout.split()) > 1
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
        Path(control(run)).write_bytes(b"STOP 9\nreason: \x1b[2Jgone\x07 \xe2\x80\xae\xff\n")
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


def test_two_runs_that_begin_alike(run_id: str, bystander: subprocess.Popen[bytes]) -> None:
    one, ten = f"{run_id}-1", f"{run_id}-10"
    for run in (one, ten):
        start("sleep", "900", options=("--run-id", run))
    agentbox("kill", one, check=0)
    assert (row(one)["state"], row(ten)["state"]) == ("stopped", "running")
    (survivor,) = pids_of(ten)
    assert is_alive(survivor)
    agentbox("kill", ten, check=0)


def test_all_that_lives_is_ended_by_kill_all(bystander: subprocess.Popen[bytes]) -> None:
    runs = [start("sleep", "900") for _ in range(3)]
    receipts = json.loads(agentbox("kill", "--all", "--json", check=0).stdout)
    assert sorted(receipt["run_id"] for receipt in receipts) == sorted(runs)
    assert all(receipt["proof"] == "empty" for receipt in receipts)
    assert [row(run)["state"] for run in runs] == ["stopped"] * 3
