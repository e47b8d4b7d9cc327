"""Rounds of a start against a stop, each verb a fork of this process that calls the command's own entry point.

usage: python -m tests.stop.rounds KIND BACKEND SEED COUNT, with AGENTBOX_HOME set. Prints one JSON object:
{"seed", "rounds", "seen": {how it came out: count}, "faults": [...]}.

This process is a subreaper (prctl(2)), so whatever a round leaves alive becomes a child of it: a round is over
when there is no child, and none may be left without a further stop.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import importlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from sandbox.boxes.registry import local_backends
from sandbox.cli import kill, run, spawn
from sandbox.cli.main import main
from sandbox.control.status import Status, status
from sandbox.kernel.mounts import cgroup_of
from sandbox.manifest.home import Home
from tests.beds.space import is_alive

LOADED = (kill, run, spawn)  # before the forks, which so need not load them
PATIENCE = 60.0
COMMAND = ["sh", "-c", "sleep 900 & setsid sleep 900 & sleep 900"]
KILLED = (137, 143)
REFUSED = 75


class Fault(Exception):
    """What must not be."""


def call(*args: str, out: str = os.devnull) -> int:
    """Start a verb; its pid."""
    pid = os.fork()
    if pid == 0:
        entered(*args, out=out)
    return pid


def entered(*args: str, out: str = os.devnull, first: Callable[[], None] = lambda: None) -> None:
    """In a fork: be the command `agentbox ARGS`, its output in the file `out`, and end as it does. Never returns.

    `first` is called when all is ready for it.
    """
    code = 99
    try:
        null = os.open(os.devnull, os.O_RDWR)
        output = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        error = os.open(f"{os.environ['AGENTBOX_HOME']}.{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
        for fd, target in ((null, 0), (output, 1), (error, 2)):
            os.dup2(fd, target)
        os.closerange(3, 1024)
        first()
        sys.argv = ["agentbox", *args]
        main()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 98
    finally:
        os._exit(code)


def said(pid: int) -> str:
    """What the verb wrote to stderr; the file goes."""
    path = Path(f"{os.environ['AGENTBOX_HOME']}.{pid}")
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


def code_of(pid: int, what: str) -> int:
    """The exit status, awaited."""
    until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, f"the end of {what}")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise Fault(f"{what}: not within {PATIENCE:g} s; alive: {describe()}")
        time.sleep(0.001)


def children(pid: int | str = "self") -> list[int]:
    """Live children, zombies among them."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in tasks.read_text().split()]
    return found


def describe() -> list[str]:
    found = []
    for pid in children():
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found.append(f"{pid} {cgroup_of(pid)} {argv}")
    return found


def settled() -> bool:
    """Reap; True when there is no child any more."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return not children()


def pause(seconds: float) -> None:
    """The random distance between two events, which is what a round is about."""
    time.sleep(seconds)


def stop(run_id: str) -> int:
    """`agentbox kill` until the run exists; the exit status."""
    deadline = time.monotonic() + PATIENCE
    while True:
        killer = call("kill", run_id)
        code = code_of(killer, "kill")
        text = said(killer)
        if code != 3:
            if code:
                raise Fault(f"kill gave {code}: {text}")
            return code
        if time.monotonic() > deadline:
            raise Fault(f"run {run_id} never came to be")


def check_end(starter: int, detached: bool, what: str) -> str:
    """The start ended as killed or as refused."""
    code = code_of(starter, what)
    text = said(starter)
    allowed = (0, REFUSED) if detached else (*KILLED, REFUSED)
    if code not in allowed:
        raise Fault(f"{what} gave {code}: {text}")
    return "refused" if code == REFUSED else "killed"


def nothing_left(home: Home, run_id: str) -> Status:
    """Without any further stop: no process, no box, and the record says how it ended."""
    until(settled, "an end of all processes")
    one = status(home, run_id)
    if one.boxes or one.state not in ("stopped", "not started"):
        raise Fault(f"{run_id} is {one.state} ({one.why}), boxes {[box.cgroup for _, box in one.boxes]}")
    code = (one.run.ended or {}).get("code")
    if code is not None and code not in (*KILLED, REFUSED):
        raise Fault(f"{run_id} is recorded to have ended with {code}")
    return one


def longest(home: Home, backend: str) -> float:
    """How long an undisturbed start takes, in seconds: the span in which a round's second event is to come."""
    began = time.monotonic()
    run_id = f"first-{os.getpid()}"
    starter = call("run", "-d", "--run-id", run_id, "--backend", backend, "--", *COMMAND)
    if code_of(starter, "run"):
        raise Fault(f"run does not work: {said(starter)}")
    taken = time.monotonic() - began
    said(starter)
    stop(run_id)
    nothing_left(home, run_id)
    return 1.5 * taken


def start_against_kill(home: Home, backend: str, run_id: str, rng: random.Random, span: float) -> str:
    detached = rng.random() < 0.5
    starter = call("run", *(["-d"] if detached else []), "--run-id", run_id, "--backend", backend, "--", *COMMAND)
    pause(rng.uniform(0, max(span, 0.05)))
    stop(run_id)
    how = check_end(starter, detached, "run")
    nothing_left(home, run_id)
    return how


def spawn_against_kill(home: Home, backend: str, run_id: str, rng: random.Random, span: float) -> str:
    """Three spawns a round."""
    starter = call("run", "-d", "--run-id", run_id, "--backend", backend, "--", *COMMAND)
    if code_of(starter, "run"):
        raise Fault(f"run: {said(starter)}")
    said(starter)
    spawns = []
    killer = 0
    kill_at = rng.randrange(3)
    for number in range(3):
        detached = rng.random() < 0.5
        argv = ["spawn", run_id, *(["-d"] if detached else []), "--task", f"t{number}", "--", *COMMAND]
        spawns.append((call(*argv), detached))
        pause(rng.uniform(0, 0.03))
        if number == kill_at:
            killer = call("kill", run_id)
    if code := code_of(killer, "kill"):
        raise Fault(f"kill gave {code}: {said(killer)}")
    said(killer)
    how = sorted(check_end(pid, detached, "spawn") for pid, detached in spawns)
    nothing_left(home, run_id)
    return " ".join(how)


def launcher_killed(home: Home, backend: str, run_id: str, rng: random.Random, span: float) -> str:
    detached = rng.random() < 0.5
    starter = call("run", *(["-d"] if detached else []), "--run-id", run_id, "--backend", backend, "--", *COMMAND)
    pause(rng.uniform(0, span))
    behind = children(starter) if detached else []
    for pid in behind[:1] or [starter]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    code_of(starter, "run")
    said(starter)
    until(lambda: all_named(home, run_id), "the end of what the manifest does not name")
    alive = [pid for pid in children() if is_alive(pid)]
    if (Path(home.path) / "runs" / run_id).exists():
        stop(run_id)
    until(settled, "an end of all processes")
    if boxes := status(home, run_id).boxes:
        raise Fault(f"boxes are left: {[box.cgroup for _, box in boxes]}")
    return "ran on" if alive else "never ran"


def all_named(home: Home, run_id: str) -> bool:
    """Is every child of ours in the box of a task that the manifest says has started, or that task's launcher?"""
    settled()
    tasks = [task for task in status(home, run_id).run.tasks.values() if task.state == "started"]
    boxes = {task.box.cgroup for task in tasks if task.box}
    launchers = {task.launcher.pid for task in tasks if task.launcher}
    return all(pid in launchers or cgroup_of(pid) in boxes for pid in children() if is_alive(pid))


def emergency_against_start(home: Home, backend: str, run_id: str, rng: random.Random, span: float) -> str:
    """The file alone, without any order: whoever sees it first. Then each box that there is is ended, once."""
    starter = call("run", "--run-id", run_id, "--backend", backend, "--", *COMMAND)
    pause(rng.uniform(0, max(span, 0.02)))
    Path(home.emergency_stop).touch()
    for one in local_backends(home.path):
        for box in one.list():
            if box.task_id is None and one.kill(box, time.monotonic() + PATIENCE) != "empty":
                raise Fault(f"{box.cgroup} cannot be emptied")
    how = check_end(starter, False, "run")
    until(settled, "an end of all processes")
    if code_of(late := call("run", "--backend", backend, "--", "true"), "a late run") != REFUSED:
        raise Fault("a run started while the emergency stop was on")
    said(late)
    os.unlink(home.emergency_stop)
    return how


KINDS = {
    "start": start_against_kill,
    "spawn": spawn_against_kill,
    "launcher": launcher_killed,
    "emergency": emergency_against_start,
}


def rounds(kind: str, backend: str, seed: int, count: int) -> dict[str, object]:
    """Play `count` rounds; the first fault ends it, with the round that it came in."""
    rng, home = random.Random(seed), Home.locate()
    home.ensure()
    span = longest(home, backend)
    seen: collections.Counter[str] = collections.Counter()
    faults = []
    for number in range(count):
        try:
            seen[KINDS[kind](home, backend, f"{kind}-{os.getpid()}-{number}", rng, span)] += 1
        except Exception as error:
            text = str(error) if isinstance(error, Fault) else traceback.format_exc()
            faults.append(f"{kind} on {backend}, seed {seed}, round {number}: {text}")
            call("kill", "--all")
            break
    return {"seed": seed, "rounds": number + 1, "seen": dict(seen), "faults": faults}


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    with contextlib.suppress(ImportError):
        importlib.import_module("pystemd.systemd1")
    print(json.dumps(rounds(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
