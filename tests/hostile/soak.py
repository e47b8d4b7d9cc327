"""One of several processes that start, spawn, reconcile and kill in one AGENTBOX_HOME, round after round.

usage: python -m tests.hostile.soak SEED COUNT, with AGENTBOX_HOME set. Prints one JSON object:
{"rounds", "seen": {what came out: count}, "faults": [...]}.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import random
import sys
import traceback
from pathlib import Path

from sandbox.cli import app, reconcile
from sandbox.control.status import status
from sandbox.manifest.home import Home
from sandbox.manifest.verify import verify
from tests.stop.rounds import COMMAND, Fault, call, code_of, nothing_left, said

LOADED = (app, reconcile)  # before the forks, which so need not load them


def done(*args: str) -> int:
    """A verb, to its end; its exit status."""
    pid = call(*args)
    code = code_of(pid, " ".join(args))
    text = said(pid)
    if "Traceback" in text or "unexpected" in text:
        raise Fault(f"{args} gave {code}: {text}")
    return code


def must(*args: str) -> None:
    if code := done(*args):
        raise Fault(f"{args} gave {code}")


def one_round(home: Home, run_id: str, rng: random.Random) -> str:
    """A run with two tasks or three, looked at and stopped, by itself or task by task; how."""
    must("run", "-d", "--run-id", run_id, "--backend", "cgroup", "--", *COMMAND)
    tasks = [f"t{number}" for number in range(rng.randint(1, 2))]
    for task in tasks:
        must("spawn", run_id, "-d", "--task", task, "--", *COMMAND)
    looked = done("reconcile", "--kill")
    one = status(home, run_id)
    if one.state != "running" or len(one.run.tasks) != len(tasks) + 1:
        raise Fault(f"{run_id} is {one.state} ({one.why}) after a reconcile that gave {looked}")
    stale = [task.task_id for task in one.run.tasks.values() if task.state != "started"]
    if stale:
        raise Fault(f"{run_id}: {stale} ended by a reconcile that gave {looked}")
    if rng.random() < 0.5:
        must("kill", run_id, "--task", tasks[0])
    must(*rng.choice([["kill", run_id], ["abort", run_id, "--grace", "0s", "--term", "1s"]]))
    nothing_left(home, run_id)
    verdict = verify(home.run_dir(run_id).manifest, run_id=run_id)
    if not verdict.whole:
        raise Fault(f"{run_id}: the record is broken: {verdict}")
    return f"reconcile {looked}"


def rounds(seed: int, count: int) -> dict[str, object]:
    rng, home = random.Random(seed), Home.locate()
    seen: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    number = 0
    for number in range(count):
        run_id = f"soak-{os.getpid()}-{number}"
        try:
            seen[one_round(home, run_id, rng)] += 1
        except Exception as error:
            text = str(error) if isinstance(error, Fault) else traceback.format_exc()
            faults.append(f"seed {seed}, round {number}: {text}")
            done("kill", run_id)
            break
    return {"rounds": number + 1, "seen": dict(seen), "faults": faults}


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    Path(os.environ["AGENTBOX_HOME"]).mkdir(mode=0o700, exist_ok=True)
    print(json.dumps(rounds(int(sys.argv[1]), int(sys.argv[2]))))
