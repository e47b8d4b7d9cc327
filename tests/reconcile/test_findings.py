"""Each kind of finding made for real, and its opposite, which must not be reported; `--kill`, and what it leaves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sandbox.boxes.cgroup import HOME_XATTR
from sandbox.kernel.identity import Identity
from tests.beds import space
from tests.cli.runs import inspect, pids_of, records, run_dir, start
from tests.reconcile.looking import (
    assert_clean,
    box_of,
    box_pids,
    edit_record,
    end,
    end_launcher,
    ended,
    findings,
    in_state,
    kinds,
    launcher_of,
    one,
    orphan,
    reconcile,
)
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("runs")

FIELDS = {"kind", "severity", "run_id", "task_id", "what", "since", "evidence", "command"}


def test_live_and_ended_runs_are_no_findings() -> None:
    run = start("sh", "-c", "sleep 900 & sleep 900")
    agentbox("spawn", run, "-d", "--", "sleep", "900", check=0)
    ended(start("true"))
    ended(start("sh", "-c", "exit 3"), 3)
    killed = start("sleep", "900")
    agentbox("kill", killed, check=0)
    ended(killed, 137)
    seen = reconcile(check=0)
    assert (set(seen), seen["findings"]) == ({"findings", "not_asked", "not_inspectable"}, [])
    assert kinds("--kill", check=0) == []
    assert len(box_pids(run)) == 4


def test_orphan_is_found_named_and_killed_with_a_receipt(bystander: subprocess.Popen[bytes]) -> None:
    live = start("sleep", "900")
    run = orphan("sh", "-c", "sleep 900 & setsid sleep 900 & wait")
    found = one("orphan", check=1)
    assert set(found) == FIELDS
    assert (found["run_id"], found["severity"]) == (run, "warning")
    assert found["command"] == f"agentbox kill {run}"
    assert found["evidence"]["launcher_alive"] is False and len(found["evidence"]["pids"]) == 3
    assert one("orphan")["since"] == found["since"]

    seen = reconcile("--kill", check=0)
    assert [done["ok"] for done in seen["ended"]] == [True]
    assert pids_of(live) and records(run, "stop.receipt")[-1]["proof"] == "empty"
    assert records(run, "finding")[-1]["finding"]["kind"] == "orphan"
    assert_clean()
    assert reconcile("--kill", check=0)["ended"] == []
    assert is_alive(bystander.pid) and len(box_pids(live)) == 1


def test_the_command_of_a_finding_ends_it() -> None:
    orphan()
    command = one("orphan")["command"].split()
    agentbox(*command[1:], check=0)
    assert_clean()


def test_reconcile_twice_finds_the_same() -> None:
    orphan()
    start("sleep", "900")
    start("sh", "-c", "sleep 900 & exit 0", options=("--on-exit", "leave"))
    wait_for(lambda: kinds() == ["leftovers", "orphan"])
    assert findings() == findings()


def test_one_run_alone() -> None:
    first, second = orphan(), orphan()
    assert [found["run_id"] for found in findings("--run", first)] == [first]
    reconcile("--kill", "--run", first, check=0)
    assert one("orphan")["run_id"] == second
    assert agentbox("reconcile", "--run", "../x").returncode == 2


def test_orphaned_task_of_a_live_run() -> None:
    run = start("sleep", "900")
    agentbox("spawn", run, "-d", "--task", "worker", "--", "sleep", "900", check=0)
    agentbox("spawn", run, "-d", "--task", "other", "--", "sleep", "900", check=0)
    end_launcher(run, "worker")
    found = one("orphan")
    assert (found["run_id"], found["task_id"]) == (run, "worker")
    assert found["command"] == f"agentbox kill {run} --task worker"
    reconcile("--kill", check=0)
    assert len(box_pids(run)) == 2 and inspect(run)["state"] == "running"
    assert_clean()


def test_leftovers_that_were_asked_for_are_shown_and_kept() -> None:
    run = start("sh", "-c", "sleep 900 & exit 0", options=("--on-exit", "leave"))
    wait_for(lambda: inspect(run)["state"] == "leftovers")
    found = one("leftovers")
    assert found["severity"] == "info" and found["evidence"]["ended_by_kill"] is False
    assert reconcile("--kill", check=1)["ended"] == []
    assert len(box_pids(run)) == 1


def test_leftovers_of_a_launcher_that_died_too_early() -> None:
    """main has ended, its launcher is gone before it could end the rest, another task goes on."""
    run = start("sleep", "900")
    agentbox("spawn", run, "-d", "--task", "worker", "--", "sleep", "900", check=0)
    (main,) = [task for task in inspect(run)["task_list"] if task["task_id"] == "main"]
    end_launcher(run)
    os.kill(main["pid"], signal.SIGKILL)
    wait_for(lambda: not is_alive(main["pid"]))
    assert one("leftovers")["run_id"] == run
    reconcile("--kill", check=0)
    assert box_pids(run) == []
    assert_clean()


def test_lost_is_found_and_closed_once() -> None:
    run = start("sleep", "900")
    (pid,) = box_pids(run)
    end_launcher(run)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    assert kinds() == ["leftover_cgroup", "lost"]
    reconcile("--kill", check=0)
    assert inspect(run)["state"] == "lost" and not box_of(run).exists()
    assert records(run, "run.ended")[-1]["outcome"] == "lost"
    assert_clean()


def test_lost_at_a_reboot() -> None:
    run = ended(start("true"))

    def other_boot(lines: list[dict[str, object]]) -> None:
        lines[:] = [line for line in lines if line["event"] in ("run.created", "task.intent", "task.started")]
        for line in lines:
            line["boot_id"] = "00000000-0000-0000-0000-000000000000"

    edit_record(run, other_boot)
    found = one("lost")
    assert found["severity"] == "info" and "reboot" in found["what"]


def test_stopped_and_alive() -> None:
    run = start("sleep", "900")
    (pid,) = box_pids(run)
    Path(run_dir(run) / "ctl/control").write_text("STOP 9\nat: 2026-01-01T00:00:00.000000Z\nby: uid 0 pid 4194303\n")
    found = one("stopped_alive")
    assert (found["severity"], found["run_id"]) == ("security", run)
    reconcile("--kill", check=0)
    assert not is_alive(pid)
    assert_clean()


def test_a_stop_that_is_being_carried_out_is_no_finding() -> None:
    run = start("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
    aborting = subprocess.Popen(agentbox_argv("abort", run, "--grace", "60s"), env=agentbox_env())
    try:
        wait_for(lambda: inspect(run)["order"] == "STOP")
        assert kinds("--kill", check=0) == []
        assert box_pids(run)
    finally:
        end(aborting)
    assert one("stopped_alive")["run_id"] == run


def test_emergency_stop_with_a_run_alive(home: Path) -> None:
    run = start("sleep", "900")
    (home / "EMERGENCY_STOP").touch()
    assert one("stopped_alive")["run_id"] == run
    reconcile("--kill", check=0)
    assert box_pids(run) == [] and (home / "EMERGENCY_STOP").exists()


def test_expired_under_a_launcher_that_sleeps() -> None:
    """By the clock that nobody sets: the record's monotonic time, not its date."""
    run = start("sleep", "900", options=("--timeout", "3600"))
    launcher = launcher_of(run)
    os.kill(launcher, signal.SIGSTOP)
    in_state(launcher, "T")
    try:
        edit_record(run, lambda lines: set_all(lines, ts="2020-01-01T00:00:00.000000Z"))
        assert kinds() == []
        edit_record(run, lambda lines: set_all(lines, timeout=0.5, mono=max(0.001, lines[-1]["mono"] - 30)))
        assert one("expired")["run_id"] == run
        reconcile("--kill", check=0)
        assert box_pids(run) == []
    finally:
        if Identity.of(launcher):
            os.kill(launcher, signal.SIGCONT)
    wait_for(lambda: not is_alive(launcher))


def set_all(lines: list[dict[str, Any]], **fields: Any) -> None:
    """The same fields in each record."""
    for line in lines:
        line.update(fields)


def test_time_out_of_a_run_that_is_within_it() -> None:
    start("sleep", "900", options=("--timeout", "3600"))
    assert_clean()


GATED = "while :; do agentbox gate work; sleep 0.1; done"


def test_stalled_beyond_twice_its_allowance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that passes no boundary, beside one that does and one that has all day; held ones stall nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "agentbox").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sandbox.cli.main "$@"\n')
    (folder / "agentbox").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    run = start("sleep", "900", options=("--allowance", "1h"))
    agentbox("spawn", run, "-d", "--task", "busy", "--allowance", "10s", "--", "sh", "-c", GATED, check=0)
    agentbox("spawn", run, "-d", "--task", "idle", "--allowance", "0.1s", "--", "sleep", "900", check=0)
    assert records(run, "task.started")[-1]["allowance"] == 0.1
    beat = run_dir(run) / "beat" / "busy"
    wait_for(beat.exists)
    found = wait_for(findings)
    assert [(one["kind"], one["task_id"]) for one in found] == [("stalled", "idle")]
    told = r"no boundary for \d+ s \(it has never passed a gate\); its allowance is 0.1 s, and twice that has gone by"
    assert re.fullmatch(told, found[0]["what"])
    assert "warning stalled of task idle (now): no boundary" in agentbox("report", run, check=0).stdout
    assert reconcile("--kill", check=1)["ended"] == []
    agentbox("pause", run, "--task", "idle", "--wait", "0s")
    assert kinds() == []
    agentbox("resume", run, "--task", "idle", check=0)
    assert wait_for(kinds) == ["stalled"]
    agentbox("pause", run, "--wait", "0s")
    assert kinds() == [] and inspect(run)["state"] == "paused"


def test_stalled_after_its_last_boundary() -> None:
    run = start("sleep", "900", options=("--allowance", "30s"))
    beat = run_dir(run) / "beat" / "main"
    for order in (run_dir(run) / "ctl/control", run_dir(run) / "ctl/tasks/main"):
        order.write_text(order.read_text().replace("at: 20", "at: 19"))
    edit_record(run, lambda lines: set_all(lines, mono=0.001))
    assert kinds() == ["stalled"]
    beat.touch()
    assert kinds() == []
    os.utime(beat, (time.time() - 55, time.time() - 55))
    assert kinds() == []
    os.utime(beat, (time.time() - 65, time.time() - 65))
    found = one("stalled")
    assert (found["run_id"], found["task_id"]) == (run, "main")
    assert "gate" not in found["what"] and "its allowance is 30 s" in found["what"]
    assert len(box_pids(run)) == 1
    lines = agentbox("reconcile", "--kill", check=1).stdout.splitlines()
    way_out = f"to end it: agentbox kill {run} --task main"
    assert f"stalled of run {run}: left: a long call looks the same; {way_out}" in lines


@pytest.mark.parametrize("gone", ["deleted", "renamed", "directory deleted"])
def test_record_gone_under_a_live_run(gone: str, tmp_path: Path) -> None:
    """It is found, left alone by --kill, and can be killed by the id that is shown."""
    run = start("sleep", "900")
    (pid,) = box_pids(run)
    manifest = run_dir(run) / "manifest.jsonl"
    if gone == "deleted":
        manifest.unlink()
    elif gone == "renamed":
        manifest.rename(manifest.with_suffix(".old"))
    else:
        run_dir(run).rename(tmp_path / "elsewhere")
    found = one("unknown_box")
    assert found["run_id"] == run
    reconcile("--kill", check=1)
    assert is_alive(pid)
    agentbox(*found["command"].split()[1:])
    assert not is_alive(pid)


def test_box_of_a_task_that_no_record_knows() -> None:
    run = start("sleep", "900")
    box = box_of(run).parent / "stranger"
    box.mkdir()
    process = subprocess.Popen(["sleep", "900"])
    (box / "cgroup.procs").write_text(str(process.pid))
    try:
        found = one("unknown_box")
        assert (found["run_id"], found["task_id"]) == (run, "stranger")
        assert reconcile("--kill", check=1)["ended"] == []
    finally:
        end(process)


HANDMADE = """
own=$1; reconcile="$2 -m sandbox.cli.main reconcile --json"
mkdir -p $own/agentbox/handmade/x $own/elsewhere/agentbox/other/x
sleep 900 & echo $! > $own/agentbox/handmade/x/cgroup.procs
sleep 900 & echo $! > $own/elsewhere/agentbox/other/x/cgroup.procs
$reconcile > first; $reconcile --kill > second; echo done > ready; wait
"""


def test_unmarked_box_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the caller's runs go, without a mark and a record: shown with the kernel's own command, never ended.

    The caller is inside of a run, so that its own place is one that no other test has.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script").write_text(HANDMADE)
    script = 'own=$(sed -n "s|^0::||p" /proc/self/cgroup); exec sh script "$0$own" "$1"'
    mount = space.cgroup2_mount()
    run = start("sh", "-c", script, str(mount), sys.executable, options=("--backend", "cgroup"))
    wait_for((tmp_path / "ready").exists, 60)
    for name in ("first", "second"):
        (found,) = json.loads((tmp_path / name).read_text())["findings"]
        assert (found["kind"], found["severity"], found["run_id"]) == ("unknown_box", "info", "handmade")
        assert found["command"] == f"echo 1 > {box_of(run)}/agentbox/handmade/cgroup.kill"
    assert inspect(run)["processes"] == 3
    assert_clean()


def test_another_home_is_another_world(home: Path, tmp_path: Path) -> None:
    """Its orphans are neither shown nor touched, whatever their state."""
    other = tmp_path / "other"
    run = agentbox("run", "-d", "--", "sleep", "900", home=other, check=0).stdout.strip()
    try:
        (task,) = json.loads(agentbox("inspect", run, home=other, check=0).stdout)["task_list"]
        os.kill(task["launcher"]["pid"], signal.SIGKILL)
        wait_for(lambda: not is_alive(task["launcher"]["pid"]))
        assert kinds("--kill", check=0) == []
        assert is_alive(task["pid"])
        assert kinds(home=other) == ["orphan"]
    finally:
        agentbox("kill", run, home=other, check=0)


def test_leftover_cgroup_is_removed_only_when_empty(free_cgroup: Path, home: Path) -> None:
    ended(start("true"))
    parent = free_cgroup / "agentbox" / "r-old"
    (parent / "main").mkdir(parents=True)
    os.setxattr(parent, HOME_XATTR, os.fsencode(home))
    found = one("leftover_cgroup")
    assert found["evidence"]["path"] == str(parent)
    other = orphan()
    assert found["command"] == "agentbox reconcile --kill --run r-old"
    agentbox(*found["command"].split()[1:], check=0)
    assert not parent.exists() and box_pids(other)
    reconcile("--kill", check=0)
    assert_clean()


def test_two_live_boxes_with_one_task_id(free_cgroup: Path, home: Path) -> None:
    run = start("sleep", "900")
    twin = free_cgroup / "agentbox" / run
    (twin / "main").mkdir(parents=True)
    os.setxattr(twin, HOME_XATTR, os.fsencode(home))
    process = subprocess.Popen(["sleep", "900"])
    try:
        assert kinds() == []
        (twin / "main" / "cgroup.procs").write_text(str(process.pid))
        found = one("duplicate_task")
        assert (found["task_id"], len(found["evidence"]["pids"])) == ("main", 2)
        reconcile("--kill", check=1)
        assert is_alive(process.pid)
    finally:
        end(process)


def test_bad_record_does_not_hide_what_else_there_is() -> None:
    run = orphan()
    with open(run_dir(run) / "manifest.jsonl", "a") as file:
        file.write("{nonsense\n")
    assert kinds() == ["bad_record", "orphan"]
    bad = next(found for found in findings() if found["kind"] == "bad_record")
    assert bad["evidence"]["lines"][0]["offset"] > 0
    assert kinds("--kill", check=1) == ["bad_record", "orphan"]
    assert kinds() == ["bad_record"]


def test_torn_tail_is_told() -> None:
    run = start("sleep", "900")
    with open(run_dir(run) / "manifest.jsonl", "a") as file:
        file.write('{"v":1,"ts":"20')
    assert kinds() == ["bad_record"]


def in_repository(tmp_path: Path) -> Path:
    """A repository with one commit, to start runs in."""
    folder = tmp_path / "repo"
    folder.mkdir()
    name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    (folder / "file").write_text("one\n")
    subprocess.run(["git", "-C", str(folder), "add", "."], check=True)
    subprocess.run(["git", "-C", str(folder), *name, "commit", "-qm", "one"], check=True)
    return folder


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("true", []),
        ("echo two >file", ["dirty_worktree"]),
        ("touch new", ["dirty_worktree"]),
        ("echo two >file; git -c user.name=t -c user.email=t@example.org stash -q", ["stash"]),
    ],
)
def test_work_left_in_a_worktree(
    script: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_repository(tmp_path))
    live = start("sh", "-c", "touch wip; sleep 900", options=("--worktree",))
    run = ended(start("sh", "-c", script, options=("--worktree",)))
    found = findings()
    assert [(one["kind"], one["run_id"], one["severity"]) for one in found] == [(kind, run, "info") for kind in wanted]
    assert all(one["since"] == records(run, "run.ended")[-1]["ts"] for one in found)
    assert reconcile("--kill")["ended"] == []
    told = agentbox("reconcile", "--kill").stdout
    assert told.count(f" of run {run}: left: work is never deleted; to see it: git -C ") == len(found)
    assert findings() == found and inspect(live)["state"] == "running"
    for one_of_them in found:
        command = one_of_them["command"]
        assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout


def test_table_for_people() -> None:
    run = orphan()
    text = agentbox("reconcile", check=1).stdout
    assert text.splitlines()[0].split()[:4] == ["SEVERITY", "KIND", "RUN", "TASK"]
    assert run in text and f"agentbox kill {run}" in text


def test_each_action_is_told_once() -> None:
    """In the table's text; with --json, which is not for people, in the log on stderr."""
    run = orphan()
    done = agentbox("reconcile", "--kill", "--run", run, check=0)
    assert done.stdout.count(f"orphan of run {run}: empty") == 1 and done.stderr == ""
    run = orphan()
    assert f"orphan of run {run}: empty" in agentbox("reconcile", "--kill", "--json", "--run", run, check=0).stderr


def test_no_home_yet_is_clean() -> None:
    assert_clean()
