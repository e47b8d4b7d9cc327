"""Observers that can't see everything: what is counted, what is named, and that the others go on."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.kernel.mounts import cgroup2_mount
from sandbox.kernel.scan import hidden_processes, proc_hides, scan_processes
from sandbox.kernel.spawn import apart
from sandbox.manifest.home import Home
from sandbox.reconcile import survey as survey_module
from sandbox.reconcile.boxes import SeenBox
from sandbox.reconcile.classify import classify
from sandbox.reconcile.survey import survey
from tests.cli.runs import inspect, run_dir, start
from tests.reconcile.looking import answered, box_pids, edit_record, end, findings, in_state, orphan, reconcile
from tests.stop.agents import BIT
from tests.support import agentbox, is_alive, wait_for

NOBODY = 65534
pytestmark = pytest.mark.usefixtures("runs")


@pytest.fixture
def silent_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An engine that accepts and never answers."""
    path = tmp_path / "engine.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(50)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    yield
    server.close()


def test_engine_that_hangs_does_not_block_the_others(silent_engine: None) -> None:
    run = orphan(options=("--backend", "cgroup"))
    seen = reconcile(check=2)
    assert {found["kind"] for found in seen["findings"]} == {"orphan", "engine_unreachable"}
    assert [missing["observer"] for missing in seen["not_asked"]] == ["containers"]
    assert "not answered" in seen["not_asked"][0]["why"]
    assert [done["ok"] for done in reconcile("--kill", check=2)["ended"]] == [True]
    assert inspect(run)["state"] == "stopped"
    text = agentbox("reconcile", check=2)
    assert "not asked: containers" in text.stdout and "not asked: containers" in text.stderr


def test_engine_that_is_not_there_and_not_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start("sleep", "900", options=("--backend", "cgroup"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    reconcile(check=0)


def test_an_observer_that_hangs_or_fails_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its stead stands something that really waits, or really raises."""
    run = orphan()
    waiting = threading.Event()

    def hangs(*_: object) -> list[SeenBox]:
        waiting.wait()
        return []

    monkeypatch.setattr(survey_module, "read_outside", hangs)
    began = time.monotonic()
    seen = survey(Home(str(home)), seconds=1.0)
    waiting.set()
    assert [(one.observer, one.why) for one in seen.not_asked] == [("processes", "no answer in time")]
    assert run in seen.boxes and time.monotonic() - began < 60


def test_cgroups_that_could_not_be_asked_make_nothing_lost(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Could not ask is not gone."""
    orphan()

    def fails(*_: object) -> list[SeenBox]:
        raise OSError("no")

    monkeypatch.setattr(survey_module, "read_boxes", fails)
    seen = survey(Home(str(home)))
    assert [(one.observer, one.why) for one in seen.not_asked] == [("cgroups", "OSError: no")]
    assert [one.kind for one in classify(seen) if one.kind not in ("escapee", "unknown_box")] == []


def test_records_that_can_not_be_listed_make_no_findings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them every box would be unknown."""
    start("sleep", "900")

    def fails(*_: object) -> dict[str, object]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(survey_module, "read_runs", fails)
    seen = survey(Home(str(home)))
    assert [one.observer for one in seen.not_asked] == ["records"]
    assert classify(seen) == []


def test_record_that_can_not_be_read_is_never_a_reason_to_kill(home: Path) -> None:
    run = orphan()
    manifest = run_dir(run) / "manifest.jsonl"
    manifest.rename(manifest.with_suffix(".away"))
    manifest.mkdir()
    assert sorted(found["kind"] for found in findings()) == ["bad_record", "unknown_box"]
    assert reconcile("--kill", check=1)["ended"] == []
    assert box_pids(run)


def as_nobody(work: Callable[[], object]) -> list[Any]:
    """What `work` gives in a child that is another user."""

    def child() -> str:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return json.dumps(work())

    return list(json.loads(apart(child, 60)))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root")
def test_environments_of_others_are_counted_and_passed_over(tmp_path: Path) -> None:
    own = subprocess.Popen(["sleep", "900"], user=NOBODY, group=NOBODY, extra_groups=[], env={"AGENTBOX_CONTROL": "/x"})
    others = subprocess.Popen(["sleep", "900"], env={"AGENTBOX_CONTROL": "/x"})
    try:

        def look() -> object:
            table = scan_processes(())
            return [
                own.pid in table.environs,
                others.pid in table.environs,
                others.pid in table.stats,
                table.unread.get(others.pid),
            ]

        in_state(own.pid, "S")
        found = as_nobody(look)
        assert found == [True, False, True, "permission denied"]
    finally:
        end(own)
        end(others)


def test_process_that_forbids_to_be_looked_into() -> None:
    """PR_SET_DUMPABLE 0 hides the environment, also from its own user (prctl(2)); root sees it all the same."""
    code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print(1, flush=True); time.sleep(900)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "AGENTBOX_CONTROL": "/x"}
    )
    try:
        assert process.stdout is not None and process.stdout.readline()
        table = scan_processes(())
        assert process.pid in table.stats
        assert (process.pid in table.environs) == (os.geteuid() == 0)
        process.stdout.close()
    finally:
        end(process)


@pytest.mark.bed("nspawn-user")
def test_own_process_that_can_not_be_looked_into(tmp_path: Path) -> None:
    test_process_that_forbids_to_be_looked_into()
    assert reconcile()["not_inspectable"] > 0


def test_zombie_is_counted() -> None:
    """One that has ended, and one whose first thread alone has: what they carried can't be told any more."""
    process = subprocess.Popen(["true"], env={"AGENTBOX_CONTROL": "/x"})
    code = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(900,)).start();"
    headless = subprocess.Popen(
        [sys.executable, "-c", f"{code} ctypes.CDLL(None).syscall({BIT[os.uname().machine]}, 0)"]
    )
    try:
        for one in (process, headless):
            in_state(one.pid, "Z")
        table = scan_processes(())
        assert process.pid not in table.environs and table.unread[process.pid] == "a zombie"
        assert table.unread[headless.pid] == "its main thread has ended"
        lines = agentbox("reconcile", "--run", "nobody", check=0).stdout.splitlines()
        assert lines[0] == "clean" and " could not be looked into: " in lines[1]
        assert "its main thread has ended" in lines[1] and "a zombie" in lines[1]
    finally:
        process.wait()
        end(headless)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts /proc, which needs root")
def test_hidden_processes_are_counted(tmp_path: Path) -> None:
    """A /proc of its own with hidepid=2, in a mount namespace of its own, seen by another user."""
    mount = cgroup2_mount()
    assert mount is not None

    def look() -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x00020000) == 0  # CLONE_NEWNS
        assert libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None) == 0  # MS_PRIVATE | MS_REC
        assert libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2") == 0
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        scan_processes(())
        return json.dumps([proc_hides(), hidden_processes(mount.point)])

    hides, hidden = json.loads(apart(look, 60))
    assert hides is True and hidden > 0
    assert proc_hides() is False


@pytest.mark.bed("nspawn-user")
def test_plain_user_with_systemd() -> None:
    """Other users' processes can't be looked into: counted; the user's own runs are judged all the same."""
    run = start("sleep", "900")
    assert reconcile(check=0)["not_inspectable"] > 0
    (pid,) = box_pids(run)
    lost = orphan()
    assert [found["run_id"] for found in findings()] == [lost]
    reconcile("--kill", check=0)
    assert box_pids(run) == [pid]


def test_boot_id_that_is_not_the_recorded_one_under_a_live_run() -> None:
    """As seen from a service with a /proc of its own in a container: nothing that lives is called gone for it."""
    live, over = start("sleep", "900"), orphan()

    def other_boot(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            line["boot_id"] = "00000000-0000-0000-0000-000000000000"

    edit_record(live, other_boot)
    assert [found["run_id"] for found in findings()] == [over]
    reconcile("--kill", check=0)
    assert len(box_pids(live)) == 1


@pytest.mark.bed("nspawn")
def test_scopes_of_systemd() -> None:
    live, over = start("sleep", "900"), orphan()
    assert [found["run_id"] for found in findings()] == [over]
    reconcile("--kill", check=0)
    assert box_pids(live)
    reconcile(check=0)


@pytest.mark.bed("dockerd")
def test_containers(engine: object) -> None:
    from tests.beds.dockerd import IMAGE

    live = start("sleep", "900", options=("--backend", "cgroup"))
    run = start("sleep", "900", options=("--image", IMAGE))
    reconcile(check=0)
    (task,) = inspect(run)["task_list"]
    for pid in (task["launcher"]["pid"], task["pid"]):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not is_alive(pid))
    assert [(found["kind"], found["run_id"]) for found in answered()] == [("orphan", run)]
    reconcile("--kill", check=0)
    assert box_pids(live) and inspect(run)["state"] == "stopped"


@pytest.mark.bed("dockerd")
def test_container_that_the_agent_made(engine: Any) -> None:
    """`docker run` from inside: nothing marks it, but that it came while the run was alive."""
    from tests.beds.dockerd import IMAGE

    docker = shutil.which("docker")
    assert docker is not None
    before, made = (f"stranger-{os.getpid()}-{word}" for word in ("before", "made"))
    argv = [docker, "run", "-d", "--rm", "--network", "none", "--name"]
    try:
        subprocess.run([*argv, before, IMAGE, "sleep", "900"], check=True, capture_output=True)
        time.sleep(2.1)  # an engine tells whole seconds
        run = start(*argv, made, IMAGE, "sleep", "900", options=("--backend", "cgroup", "--on-exit", "leave"))
        agentbox("wait", run, check=0)
        (found,) = [found for found in answered() if found["kind"] == "escapee"]
        assert (found["run_id"], found["severity"]) == (run, "info")
        assert made in found["what"] and found["command"] == f"docker rm -f {made}"
        ended = reconcile("--kill", check=1)["ended"]
        assert [done for done in ended if done["kind"] == "escapee"] == []
        assert subprocess.run([docker, "inspect", made], capture_output=True).returncode == 0
    finally:
        subprocess.run([docker, "rm", "-f", before, made], check=True, capture_output=True)
