"""A verb that crashes, or whose system call fails, at each of its system calls; and what sets it right after.

usage: python -m tests.proof.crashes SCENE kills|errors|FAULT SEED COUNT, with AGENTBOX_HOME set, BYSTANDER the id of
a run of that home that must live and BYSTANDER_PIDS its processes. COUNT 0 is all of them; FAULT, such as "EIO at
openat 7", plays that one. Prints one JSON object: {"scene", "points", "cases", "seen": {how it came out: count},
"faults": [...]}.

Each verb is a fork of this process, which has loaded everything before, and each fault has a run of its own.
Afterwards: the record reads and its chain holds, nothing lives that it does not name, a `kill` and a `reconcile
--kill`, in either order, succeed, and nothing is left.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sandbox
from sandbox.control.orders import create_order
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.manifest.reader import read
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import Writer
from tests.beds import space
from tests.cli.runs import parent_box
from tests.proof import injection
from tests.proof.injection import Fault
from tests.stop import rounds
from tests.stop.rounds import all_named, call, code_of, said, settled, until

LIVES = ["sh", "-c", "sleep 900 & setsid sleep 900 & sleep 900"]
ENDS = ["sh", "-c", "setsid sleep 900 & exit 3"]
MOST_FAULTS = 12


class Wrong(Exception):
    """What must not be."""


@dataclass(frozen=True)
class Scene:
    """A verb on a run: what comes before it, its words, and how it may end when one of its calls fails.

    `follow`: its children and threads meet the fault, too. `torn`: its record has a bad line, for which a
    reconcile is never clean.
    """

    before: Callable[[Home, str], None]
    words: Callable[[str], list[str]]
    codes: tuple[int, ...]
    follow: bool = False
    torn: bool = False


def nothing(home: Home, run_id: str) -> None:
    return


def live_run(home: Home, run_id: str, *command: str) -> None:
    starter = call("run", "-d", "--run-id", run_id, "--backend", "cgroup", "--", *(command or LIVES))
    if code := code_of(starter, "run"):
        raise Wrong(f"run -d gave {code}: {said(starter)}")
    said(starter)


def deaf_run(home: Home, run_id: str) -> None:
    live_run(home, run_id, "sh", "-c", "trap '' TERM; sleep 900 & exec setsid sleep 900")


def orphan(home: Home, run_id: str) -> None:
    """A run whose launcher is gone."""
    live_run(home, run_id)
    box = parent_box(run_id)
    inside = set(space.members(box)) if box else set()
    for pid in set(rounds.children()) - inside:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not set(rounds.children()) - inside or settled(), "the launcher's end")


def torn_record(home: Home, run_id: str) -> None:
    """A run of which there is nothing but a record, and that ends in the middle of a line."""
    run = home.run_dir(run_id).create()
    create_order(run.control, by="a test")
    Writer(run.manifest, run_id).append("run.created", argv=["x"], main_task="main")
    with open(run.manifest, "ab") as file:
        file.write(b'{"v":1,"half')


def write_records(home: Home, run_id: str) -> None:
    """In a fork: write some, and say which were confirmed. Never returns."""
    try:
        out = os.open(f"{home.path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
        stop_self()
        writer = Writer(home.run_dir(run_id).manifest, run_id)
        for number in range(4):
            try:
                writer.append("note", sync=number % 2 == 0, number=number, text="x" * 5000)
            except AgentboxError:
                continue
            with contextlib.suppress(OSError):
                os.write(out, f"confirmed {number}\n".encode())
    except BaseException:
        os._exit(99)
    finally:
        os._exit(0)


START = (3, 75, 125, 126, 127)
SCENES = {
    "run": Scene(nothing, lambda run: ["run", "--run-id", run, "--backend", "cgroup", "--", *ENDS], START),
    "run-d": Scene(
        nothing, lambda run: ["run", "-d", "--run-id", run, "--backend", "cgroup", "--", *LIVES], (0, *START[1:]), True
    ),
    "spawn": Scene(live_run, lambda run: ["spawn", run, "--task", "t", "--backend", "cgroup", "--", *ENDS], START),
    "spawn-d": Scene(live_run, lambda run: ["spawn", "-d", run, "--task", "t", "--", *LIVES], (0, *START[1:]), True),
    "kill": Scene(live_run, lambda run: ["kill", run], (0, 1, 4), True),
    "abort": Scene(deaf_run, lambda run: ["abort", "--grace", "0.1s", "--term", "0.1s", run], (0, 1, 4)),
    "writer": Scene(torn_record, lambda run: ["writer", run], (0,), torn=True),
    "reconcile": Scene(orphan, lambda run: ["reconcile", "--kill", "--run", run], (0, 1, 2), True),
}


def stopped_call(home: Home, *words: str) -> int:
    """As `call`, and waiting for SIGCONT."""
    pid = os.fork()
    if pid == 0:
        if words[0] == "writer":
            write_records(home, words[1])
        rounds.entered(*words, first=stop_self)
    return pid


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def play(home: Home, scene: Scene, run_id: str, fault: Fault | None, log: Path) -> tuple[int, str]:
    """Prepare, run the verb with the fault, and give its exit status and what it said."""
    scene.before(home, run_id)
    verb = stopped_call(home, *scene.words(run_id))
    tracer = injection.attach(verb, log, follow=scene.follow, fault=fault)
    try:
        code = code_of(verb, f"{scene.words(run_id)[0]} under {fault}")
    finally:
        injection.end(tracer)
    return code, said(verb)


def judge(home: Home, scene: Scene, run_id: str, fault: Fault, code: int, text: str) -> str:
    """Is this an end that the verb may come to, and true? In a word."""
    confirmed = {int(line.split()[1]) for line in text.splitlines() if line.startswith("confirmed ")}
    if not confirmed <= {record.get("number") for record in read(home.run_dir(run_id).manifest)}:
        raise Wrong(f"confirmed and not there: {text}")
    if fault.what == "KILL" and code == -signal.SIGKILL:
        return "killed"
    if code not in scene.codes:
        raise Wrong(f"exit {code}: {text}")
    if "Traceback" in text or "Fatal" in text or "Exception ignored" in text:
        raise Wrong(f"exit {code} with more than a line: {text}")
    box = parent_box(run_id)
    lives = box is not None and space.populated(box)
    verb = scene.words(run_id)[0]
    if lives and verb in ("kill", "abort") and code in (0, 4):
        raise Wrong(f"exit {code}, and alive are {space.members(box) if box else ''}: {text}")
    if lives and verb == "reconcile" and code == 0:
        raise Wrong(f"clean, and alive are {space.members(box) if box else ''}: {text}")
    if lives and verb == "run" and code and not re.search(f"proven dead|agentbox kill {run_id}", text):
        raise Wrong(f"exit {code}, and alive are {space.members(box) if box else ''}: {text}")
    return f"exit {code}"


def set_right(home: Home, run_id: str, kill_first: bool, torn: bool) -> None:
    """The next kill and the next reconcile set all right, whatever came before."""
    until(lambda: all_named(home, run_id), "the end of what the manifest does not name")
    if not kill_first:
        done("reconcile", "--kill", code=int(torn))
    made = Path(home.run_dir(run_id).path).exists() or parent_box(run_id) is not None
    done("kill", run_id, code=0 if made else 3)
    if (box := parent_box(run_id)) and space.populated(box):
        raise Wrong(f"kill gave 0, and alive are {space.members(box)}")
    until(settled, "an end of all processes")
    done("reconcile", "--kill", code=int(torn))
    if box := parent_box(run_id):
        raise Wrong(f"{box} is left")
    if made:
        whole(home.run_dir(run_id).manifest)


def done(*words: str, code: int = 0) -> None:
    """A verb without a fault, and how it must end."""
    out = Path(f"{os.environ['AGENTBOX_HOME']}.out")
    pid = call(*words, out=str(out))
    got = code_of(pid, words[0])
    text = said(pid) + out.read_text()
    if got != code:
        raise Wrong(f"then {' '.join(words)} gave {got}: {text}")


def whole(path: str) -> None:
    """The chain holds; a torn tail is no break of it."""
    if os.path.exists(path):
        verdict = verify(path)
        if verdict.problems:
            raise Wrong(f"{path}: {verdict.problems}")
        reading = read(path)
        list(reading)
        if reading.bad_count > len(verdict.torn):
            raise Wrong(f"{path}: {reading.bad}")


def case(home: Home, name: str, fault: Fault, number: int, kill_first: bool) -> str:
    run_id = f"{name}-{os.getpid()}-{number}"
    log = Path(f"{home.path}.trace")
    code, text = play(home, SCENES[name], run_id, fault, log)
    how = judge(home, SCENES[name], run_id, fault, code, text)
    set_right(home, run_id, kill_first, SCENES[name].torn)
    if bystander := os.environ.get("BYSTANDER"):
        box = parent_box(bystander)
        if box is None or not {int(pid) for pid in os.environ["BYSTANDER_PIDS"].split()} <= set(space.members(box)):
            raise Wrong("the bystander was killed, too")
    shutil.rmtree(home.run_dir(run_id).path, ignore_errors=True)
    return how


def points(home: Home, name: str, which: str) -> list[Fault]:
    """All faults of one kind that the scene can meet, after an undisturbed play that is looked at."""
    run_id, log = f"{name}-{os.getpid()}-first", Path(f"{home.path}.trace")
    for _ in range(2):
        code, text = play(home, SCENES[name], run_id, None, log)
        if code != SCENES[name].codes[0]:
            raise Wrong(f"undisturbed, it gave {code}: {text}")
        set_right(home, run_id, True, SCENES[name].torn)
        shutil.rmtree(home.run_dir(run_id).path)
    made = injection.calls(log)
    return injection.kills(made) if which == "kills" else injection.errors(made)


def cases(name: str, which: str, seed: int, count: int) -> dict[str, object]:
    """`which`: kills, errors, or one fault in its own words."""
    rng, home = random.Random(seed), Home.locate()
    home.ensure()
    found = points(home, name, which) if which in ("kills", "errors") else [Fault.parse(which)]
    chosen = rng.sample(found, min(count, len(found))) if count else found
    seen: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    for number, fault in enumerate(chosen):
        try:
            seen[case(home, name, fault, number, rng.random() < 0.5)] += 1
        except Exception as error:
            text = str(error) if isinstance(error, (Wrong, rounds.Fault)) else traceback.format_exc()
            faults.append(f"{name}, {fault}: {text}")
            print(faults[-1], file=sys.stderr, flush=True)
            clean_up(home, f"{name}-{os.getpid()}-{number}")
            if len(faults) >= MOST_FAULTS:
                break
    return {"scene": name, "points": len(found), "cases": number + 1, "seen": dict(seen), "faults": faults}


def clean_up(home: Home, run_id: str) -> None:
    """After a fault: no process of the case, no box, no record."""
    if box := parent_box(run_id):
        space.end_tree(box)
    for pid in rounds.children():
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(rounds.Fault):
        until(settled, "the end of a case that went wrong")
    if box := parent_box(run_id):
        space.end_tree(box)
    shutil.rmtree(home.run_dir(run_id).path, ignore_errors=True)


def load_everything() -> None:
    """So that the forks need not."""
    for module in pkgutil.walk_packages(sandbox.__path__, "sandbox."):
        importlib.import_module(module.name)
    for name in ("shutil", "subprocess", "typer", "rich", "loguru", "pwd"):
        importlib.import_module(name)


if __name__ == "__main__":
    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    load_everything()
    print(json.dumps(cases(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
