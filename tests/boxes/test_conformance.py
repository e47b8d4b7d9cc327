"""The contract of sandbox/boxes/base.py, held against every backend on a real kernel."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandbox.boxes.base import Limits
from sandbox.errors import AgentboxError
from tests.boxes.scene import SLEEP, Scene, deadline, ended_by, forked, python
from tests.support import is_alive, wait_for

CGROUP = re.compile(r"^0::(.*)$", re.MULTILINE)

COUNTING = python(
    "import os, signal, sys\n"
    "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'u'))\n"
    "if os.fork() == 0: os.setsid()\n"
    "os.write(1, b'.')\n"
    "while True: signal.pause()"
)


def cgroup_of(pid: int) -> str:
    """The v2 path of a process."""
    found = CGROUP.search(Path(f"/proc/{pid}/cgroup").read_text())
    assert found
    return found[1]


def to_file(path: Path) -> tuple[str, object]:
    """A child's step: its stdout goes to a file."""
    return "output", lambda: os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)


# being made


def test_probe_describes_a_backend_that_works_and_leaves_nothing(scene: Scene) -> None:
    assert scene.backend.name in scene.backend.probe() or "cgroup" in scene.backend.probe()
    assert [box for box in scene.backend.list() if "probe" in box.run_id] == []


def test_created_box_is_empty_and_named(scene: Scene) -> None:
    box = scene.create()
    assert (box.run_id, box.task_id, box.backend) == (scene.run_id, "main", scene.backend.name)
    assert box.host == os.uname().nodename
    assert scene.backend.populated(box) == "empty"
    assert not scene.backend.members(box, 1.0)
    assert scene.backend.kill(box, deadline()) == "empty"


def test_box_is_made_once(scene: Scene) -> None:
    box, child = scene.run(SLEEP)
    with pytest.raises(AgentboxError, match="exists"):
        scene.backend.create(scene.spec())
    assert scene.backend.populated(box) == "alive"
    assert is_alive(child.pid)


def test_run_of_another_home_is_neither_joined_nor_seen(scene: Scene, tmp_path: Path) -> None:
    box, child = scene.run(SLEEP)
    other = type(scene)(scene.make, tmp_path / "other")
    with pytest.raises(AgentboxError, match="another AGENTBOX_HOME"):
        other.backend.create(other.spec("second", scene.run_id))
    assert other.backend.parents(scene.run_id) == []
    assert other.backend.parents(scene.run_id, os.path.dirname(box.cgroup or "")) == []
    assert other.backend.find(scene.run_id, "main", box.cgroup) is None
    assert other.backend.list() == []
    assert is_alive(child.pid)


# being entered


@pytest.mark.no_container
def test_nothing_runs_before_the_release(scene: Scene, tmp_path: Path) -> None:
    box = scene.create()
    child = scene.start(box, ["touch", str(tmp_path / "ran")])
    assert scene.backend.populated(box) == "alive"
    members = scene.backend.members(box, 1.0) or []
    assert [member.pid for member in members] == [child.pid]
    assert box.cgroup and box.cgroup.endswith(cgroup_of(child.pid))
    assert not (tmp_path / "ran").exists()
    child.release()
    assert ended_by(child) == 0
    assert (tmp_path / "ran").exists()


def test_abandoned_child_never_runs(scene: Scene, tmp_path: Path) -> None:
    box = scene.create()
    child = scene.start(box, ["touch", str(tmp_path / "ran")])
    child.abandon()
    assert scene.backend.wait_empty(box, deadline()) == "empty"
    assert not is_alive(child.pid)
    assert not (tmp_path / "ran").exists()


def test_child_of_a_launcher_that_was_killed_never_runs(scene: Scene, tmp_path: Path) -> None:
    spec = scene.spec()
    note = tmp_path / "child"

    def launcher() -> None:
        box, _ = scene.backend.create(spec)
        child = scene.start(box, ["touch", str(tmp_path / "ran")])
        (tmp_path / "new").write_text(str(child.pid))
        (tmp_path / "new").rename(note)

    launcher_pid = forked(launcher)
    try:
        wait_for(note.exists, 20)
        child = int(note.read_text())
        assert is_alive(child)
    finally:
        os.kill(launcher_pid, signal.SIGKILL)
        os.waitpid(launcher_pid, 0)
    assert scene.backend.wait_empty(scene.parent(), deadline()) == "empty"
    wait_for(lambda: not is_alive(child))
    assert not (tmp_path / "ran").exists()


def test_failing_step_leaves_no_process(scene: Scene, tmp_path: Path) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied")

    box = scene.create()
    with pytest.raises(AgentboxError, match="wear a hat"):
        scene.start(box, ["touch", str(tmp_path / "ran")], (("wear a hat", fail),))
    assert scene.backend.wait_empty(box, deadline()) == "empty"
    assert not (tmp_path / "ran").exists()


@pytest.mark.no_container
def test_all_that_is_forked_at_once_is_in_the_box(scene: Scene, tmp_path: Path) -> None:
    script = "for i in 1 2 3 4 5 6; do cat /proc/self/cgroup > a$i & setsid cat /proc/self/cgroup > b$i & done; wait"
    box = scene.create()
    child = scene.start(box, ["sh", "-c", script], (("cwd", lambda: os.chdir(tmp_path)),))
    child.release()
    assert ended_by(child) == 0
    assert scene.backend.wait_empty(box, deadline()) == "empty"
    seen = [found[1] for file in tmp_path.glob("[ab]?") if (found := CGROUP.search(file.read_text()))]
    assert len(seen) == 12
    assert all(box.cgroup and box.cgroup.endswith(path) for path in seen)


def test_running_process_is_adopted(scene: Scene) -> None:
    process = subprocess.Popen(SLEEP)
    try:
        box = scene.create("launcher")
        scene.backend.adopt(box, process.pid)
        assert box.cgroup and box.cgroup.endswith(cgroup_of(process.pid))
        assert scene.end(box) == "empty"
    finally:
        process.kill()
        process.wait()


# being seen


@pytest.mark.no_container
def test_members_tell_who_lives(scene: Scene, tmp_path: Path) -> None:
    box = scene.create()
    child = scene.start(box, [*SLEEP, "7"], (("cwd", lambda: os.chdir(tmp_path)),))
    child.release()
    (member,) = scene.backend.members(box, 1.0) or []
    assert member.pid == child.pid
    assert member.argv == [*SLEEP, "7"]
    assert member.comm == "sleep"
    assert member.cwd == str(tmp_path)
    assert member.state in ("S", "R")
    assert member.start_ticks and member.uid == os.geteuid()
    assert [m.pid for m in scene.backend.members(scene.parent(), 1.0) or []] == [child.pid]


def test_unreaped_zombie_counts_as_nothing(scene: Scene) -> None:
    box, child = scene.run(["true"])
    assert scene.backend.wait_empty(box, deadline()) == "empty"
    os.kill(child.pid, 0)  # it can still be signalled: it is a zombie
    assert scene.backend.populated(box) == "empty"
    assert not scene.backend.members(box, 1.0)
    assert scene.backend.kill(box, deadline()) == "empty"
    assert scene.backend.destroy(scene.parent())
    os.kill(child.pid, 0)
    assert ended_by(child) == 0


def test_zombie_of_a_living_parent_is_no_obstacle(scene: Scene, tmp_path: Path) -> None:
    code = "import os,time\nif os.fork() == 0: os._exit(0)\nopen('ready','w')\ntime.sleep(900)"
    box = scene.create()
    child = scene.start(box, python(code), (("cwd", lambda: os.chdir(tmp_path)),))
    child.release()
    wait_for((tmp_path / "ready").exists)
    assert scene.backend.populated(box) == "alive"
    assert scene.end(box) == "empty"


@pytest.mark.no_container
def test_waiting_ends_at_its_deadline_and_at_emptiness(scene: Scene) -> None:
    box, child = scene.run(SLEEP)
    assert scene.backend.wait_empty(box, deadline(0.05)) == "alive"
    assert scene.backend.wait_empty(scene.parent(), time.monotonic() - 1) == "alive"
    os.kill(child.pid, signal.SIGKILL)
    assert scene.backend.wait_empty(box, deadline()) == "empty"
    assert scene.backend.wait_empty(scene.parent(), deadline()) == "empty"


@pytest.mark.no_container
def test_usage_counts_the_subtree(scene: Scene) -> None:
    box, _ = scene.run(["sh", "-c", "sleep 900 & setsid sleep 900 & wait"])
    wait_for(lambda: scene.backend.usage(box).pids == 3)
    scene.run(SLEEP, "second")
    usage = scene.backend.usage(scene.parent())
    assert usage.pids == 4
    assert usage.cpu is not None and usage.cpu >= 0
    assert usage.memory is None or usage.memory > 0


def test_ids_are_exact(scene: Scene) -> None:
    one, ten = f"{scene.run_id}-1", f"{scene.run_id}-10"
    dot, any_sign = f"{scene.run_id}.b", f"{scene.run_id}xb"
    children = {run_id: scene.run(SLEEP, "main", run_id)[1] for run_id in (one, ten, dot, any_sign)}
    scene.run(SLEEP, "main-1", one)
    for run_id in children:
        (parent,) = scene.backend.parents(run_id)
        assert (parent.run_id, parent.task_id) == (run_id, None)
        found = scene.backend.find(run_id, "main")
        assert found and (found.run_id, found.task_id) == (run_id, "main")
        assert scene.backend.populated(found) == "alive"
    assert scene.backend.parents(scene.run_id) == []
    assert scene.backend.find(one, "mai") is None
    assert scene.backend.find(scene.run_id, "main") is None
    assert {box.run_id for box in scene.backend.list()} == set(children)
    assert len([box for box in scene.backend.list() if box.task_id is None]) == 4
    for run_id in (one, dot):
        assert scene.end(scene.parent(run_id)) == "empty"
    assert is_alive(children[ten].pid) and is_alive(children[any_sign].pid)


def test_run_named_as_our_own_directories_is_no_other_run(scene: Scene) -> None:
    """A task's box is not taken for a run's parent, whatever the ids are."""
    _, child = scene.run(SLEEP, "agentbox", "agentbox")
    scene.spec("main", "main")  # a run of that name is on record, and has ended
    inner = scene.create("main", "agentbox")
    assert [box.run_id for box in scene.backend.parents("agentbox")] == ["agentbox"]
    assert scene.backend.parents("main") == []
    assert {box.run_id for box in scene.backend.list()} == {"agentbox"}
    if inner.cgroup and os.path.isdir(inner.cgroup):
        os.mkdir(f"{inner.cgroup}/x")
        assert scene.backend.parents("x") == []
    assert is_alive(child.pid)


# being acted on


@pytest.mark.no_container
def test_frozen_box_executes_nothing_until_it_is_thawed(scene: Scene, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    box = scene.create()
    child = scene.start(box, ["sh", "-c", "while :; do echo; done"], (to_file(beat),))
    child.release()
    wait_for(lambda: beat.exists() and beat.stat().st_size > 100)
    assert scene.backend.freeze(scene.parent(), deadline())
    size, other = beat.stat().st_size, cgroup_of(os.getpid())
    for _ in range(200):
        Path("/proc/self/stat").read_text()
    assert beat.stat().st_size == size
    assert cgroup_of(os.getpid()) == other
    scene.backend.thaw(scene.parent())
    wait_for(lambda: beat.stat().st_size > size)


def test_signal_reaches_every_process_once(scene: Scene, tmp_path: Path) -> None:
    out = tmp_path / "out"
    box = scene.create()
    child = scene.start(box, COUNTING, (to_file(out),))
    child.release()
    wait_for(lambda: out.exists() and out.read_bytes() == b"..")
    assert scene.backend.signal(scene.parent(), signal.SIGUSR1) == []
    wait_for(lambda: out.read_bytes() == b"..uu")
    assert scene.backend.signal(box, signal.SIGTERM) == []
    assert scene.backend.wait_empty(box, deadline()) == "empty"


def test_kill_ends_what_ignores_signals_stops_and_leaves(scene: Scene, tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for stopped in (0, 1):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            if stopped: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "            while True: signal.pause()\n"
        "        os._exit(0)\n"
        "open('ready', 'w')\n"
        "while True: signal.pause()"
    )
    box = scene.create()
    child = scene.start(box, python(code), (("cwd", lambda: os.chdir(tmp_path)),))
    child.release()
    wait_for((tmp_path / "ready").exists)
    assert scene.end(scene.parent()) == "empty"
    assert scene.backend.populated(box) == "empty"
    assert ended_by(child) == -signal.SIGKILL


def test_kill_works_on_a_frozen_box_and_the_next_is_not_frozen(scene: Scene) -> None:
    box, child = scene.run(SLEEP)
    assert scene.backend.freeze(box, deadline())
    assert scene.end(box) == "empty"
    assert ended_by(child) == -signal.SIGKILL
    scene.backend.thaw(scene.parent())
    second = scene.create("second")
    child = scene.start(second, ["true"])
    child.release()
    assert ended_by(child) == 0


def test_kill_of_one_task_leaves_the_other(scene: Scene) -> None:
    first, _ = scene.run(SLEEP, "first")
    second, child = scene.run(SLEEP, "second")
    assert scene.end(first) == "empty"
    assert scene.backend.populated(second) == "alive"
    assert scene.backend.populated(scene.parent()) == "alive"
    assert is_alive(child.pid)


@pytest.mark.no_container
def test_nested_cgroups_belong_to_the_box(scene: Scene) -> None:
    box, child = scene.run(["sh", "-c", "sleep 900 & wait"])
    wait_for(lambda: len(scene.backend.members(box, 1.0) or []) == 2)
    deep = Path(box.cgroup or "") / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "cgroup.procs").write_text(str(child.pid))
    assert not scene.backend.destroy(box)
    assert {m.pid for m in scene.backend.members(box, 1.0) or []} >= {child.pid}
    assert len(scene.backend.members(scene.parent(), 1.0) or []) == 2
    assert scene.backend.freeze(box, deadline())
    scene.backend.thaw(box)
    assert scene.backend.signal(box, 0) == []
    assert scene.end(box) == "empty"
    assert scene.backend.destroy(scene.parent())
    assert not deep.parent.exists()


def test_destroy_never_kills(scene: Scene) -> None:
    box, child = scene.run(SLEEP)
    assert scene.backend.destroy(box) is False
    assert scene.backend.destroy(scene.parent()) is False
    assert is_alive(child.pid)
    assert scene.backend.populated(box) == "alive"


def test_destroyed_box_is_gone_and_every_call_still_answers(scene: Scene) -> None:
    box, child = scene.run(SLEEP)
    parent = scene.parent()
    assert scene.end(parent) == "empty"
    ended_by(child)
    scene.backend.destroy(box)
    assert scene.backend.destroy(parent)
    wait_for(lambda: scene.backend.find(scene.run_id, "main") is None)
    assert scene.backend.parents(scene.run_id) == []
    for gone in (box, parent):
        assert scene.backend.populated(gone) == "empty"
        assert scene.backend.wait_empty(gone, deadline()) == "empty"
        assert not scene.backend.members(gone, 1.0)
        assert scene.backend.signal(gone, signal.SIGTERM) == []
        assert scene.backend.kill(gone, deadline()) == "empty"
        assert scene.backend.destroy(gone)
        assert scene.backend.usage(gone).pids in (None, 0)
        scene.backend.freeze(gone, deadline(0.1))
        scene.backend.thaw(gone)


@pytest.mark.no_container
def test_run_can_have_a_box_again_after_its_end(scene: Scene) -> None:
    """What an ended task leaves of its box does not hold up the next of that name."""
    for _ in range(2):
        box, child = scene.run(["true"])
        assert ended_by(child) == 0
        assert scene.backend.wait_empty(box, deadline()) == "empty"
        scene.backend.destroy(box)
        assert scene.backend.destroy(scene.parent())


# being limited


def test_limit_without_its_controller_is_an_error_and_leaves_nothing(scene: Scene) -> None:
    """These beds have no memory, pids and cpu controllers on cgroup v2."""
    told = scene.backend.controllers()
    assert sorted(told) == ["cpu", "memory", "pids"] and all(told.values())
    for limits in (Limits(memory=1 << 28), Limits(pids=100), Limits(cpus=0.5), Limits(oom_group=True)):
        (name,) = limits.asked()
        with pytest.raises(AgentboxError, match=f"--{name} cannot be applied"):
            scene.backend.create(scene.spec(limits=limits))
        with pytest.raises(AgentboxError, match=f"--{name} cannot be applied"):
            scene.backend.create(scene.spec(run_limits=limits))
        assert all(scene.backend.populated(box) == "empty" for box in scene.backend.parents(scene.run_id))


def test_limit_given_up_is_told(scene: Scene) -> None:
    limits = Limits(memory=1 << 28, pids=100, cpus=0.5, best_effort=True)
    box, given_up = scene.backend.create(scene.spec(limits=limits, run_limits=Limits(pids=5, best_effort=True)))
    assert len(given_up) == 4
    assert all(re.match(r"--(memory|pids|cpus) cannot be applied", line) for line in given_up)
    child = scene.start(box, ["true"])
    child.release()
    assert ended_by(child) == 0


EATER = "b = bytearray(200 << 20)\nprint(len(b))"
FORKER = (
    "import os, signal\n"
    "made = 0\n"
    "try:\n"
    "    for _ in range(300):\n"
    "        if os.fork() == 0:\n"
    "            while True: signal.pause()\n"
    "        made += 1\n"
    "except OSError as error: print(made, error.errno, flush=True)\n"
)


@pytest.mark.parametrize("of_run", [False, True], ids=["task", "run"])
def test_memory_limit_holds(limited_scene: Scene, of_run: bool) -> None:
    limits = Limits(memory=64 << 20)
    box = limited_scene.create(**{"run_limits" if of_run else "limits": limits})
    child = limited_scene.start(box, python(EATER))
    child.release()
    assert ended_by(child) == -signal.SIGKILL
    assert limited_scene.backend.usage(limited_scene.parent()).oom_kills == 1


@pytest.mark.parametrize("of_run", [False, True], ids=["task", "run"])
def test_all_end_together_where_memory_is_short(limited_scene: Scene, of_run: bool, tmp_path: Path) -> None:
    """With `oom_group` also what took nothing; without it the test above sees one killed."""
    limits = Limits(memory=64 << 20, oom_group=True)
    box = limited_scene.create(**{"run_limits" if of_run else "limits": limits})
    idle = tmp_path / "idle"
    child = limited_scene.start(
        box, ["sh", "-c", f"sleep 900 & echo $! > {idle}; {sys.executable} -c '{EATER}'; exit 3"]
    )
    child.release()
    assert ended_by(child) == -signal.SIGKILL
    assert limited_scene.backend.wait_empty(box, deadline()) == "empty"
    assert not is_alive(int(idle.read_text()))


def test_run_without_a_limit_cannot_take_all_pids(limited_scene: Scene) -> None:
    """The usual bound is the run's; one that was asked for takes its place, and a further task leaves it alone."""
    limited_scene.create()
    limited_scene.create("other")
    bound = Path(limited_scene.parent().cgroup or "") / "pids.max"
    ceiling = min(int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max"))
    assert 0 < int(bound.read_text()) <= 0.15 * ceiling
    other = limited_scene.spec(run_id=f"{limited_scene.run_id}x", run_limits=Limits(pids=40))
    limited_scene.backend.create(other)
    assert (Path(limited_scene.parent(other.run_id).cgroup or "") / "pids.max").read_text().strip() == "40"


@pytest.mark.parametrize("of_run", [False, True], ids=["task", "run"])
def test_pids_limit_holds(limited_scene: Scene, of_run: bool, tmp_path: Path) -> None:
    box = limited_scene.create(**{"run_limits" if of_run else "limits": Limits(pids=40)})
    out = tmp_path / "out"
    child = limited_scene.start(box, python(FORKER), (to_file(out),))
    child.release()
    assert ended_by(child) == 0
    assert out.read_text().split() == ["39", "11"]
    assert limited_scene.backend.usage(limited_scene.parent()).pids == 39
    assert limited_scene.end(box) == "empty"


def test_cpu_limit_holds(limited_scene: Scene) -> None:
    assert limited_scene.backend.controllers() == {"cpu": "", "memory": "", "pids": ""}
    box = limited_scene.create(limits=Limits(cpus=0.2))
    child = limited_scene.start(box, ["sh", "-c", "while :; do :; done"])
    child.release()
    group = Path(box.cgroup or "")
    assert (group / "cpu.max").read_text().split() == ["20000", "100000"]
    wait_for(lambda: int((group / "cpu.stat").read_text().split("nr_throttled ")[1].split()[0]) > 0, 30)


def test_unlimited_box_has_no_limit_of_ours(limited_scene: Scene) -> None:
    box, _ = limited_scene.run(SLEEP)
    usage = limited_scene.backend.usage(box)
    assert usage.pids == 1
    for name in ("memory.max", "pids.max"):
        file = Path(box.cgroup or "") / name
        assert not file.exists() or file.read_text().strip() != "0"
