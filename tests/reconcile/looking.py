"""Runs in every state that the reconciler tells, and what it says of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox.kernel.procfs import read_stat
from tests.cli.runs import inspect, records, run_dir, start
from tests.support import agentbox, is_alive, wait_for

Found = dict[str, Any]


def reconcile(*args: str, check: int | None = None, **more: Any) -> Found:
    """`agentbox reconcile --json`, parsed; `check`: the exit status that must come.

    Boxes without a mark are nobody's, and shown to all who share the parent: those that another session of tests or
    a bench makes meanwhile are left out.
    """
    done = agentbox("reconcile", "--json", *args, **more)
    assert done.returncode in (0, 1, 2), done.stderr
    seen = dict(json.loads(done.stdout))
    everything, seen["findings"] = seen["findings"], [one for one in seen["findings"] if not foreign(one)]
    status = 0 if done.returncode == 1 and everything and not seen["findings"] else done.returncode
    ended = "--kill" in args and done.returncode == 1 and len(everything) > len(seen["findings"])
    assert check in (None, status) or (ended and check == 0), (args, done.returncode, done.stdout, done.stderr)
    return seen


def foreign(found: Found) -> bool:
    return bool(found["kind"] == "unknown_box" and found["severity"] == "info")


def findings(*args: str, **more: Any) -> list[Found]:
    return list(reconcile(*args, **more)["findings"])


def answered() -> list[Found]:
    """The findings of the first look in which no observer owed its answer: an engine at load is asked again."""
    looks: list[Found] = []

    def all_told() -> bool:
        looks.append(reconcile())
        return bool(looks[-1]["not_asked"] == [])

    wait_for(all_told, 60, "an observer that owes no answer")
    return list(looks[-1]["findings"])


def kinds(*args: str, **more: Any) -> list[str]:
    return sorted(one["kind"] for one in findings(*args, **more))


def one(kind: str, *args: str, **more: Any) -> Found:
    """The only finding, which must be of this kind."""
    found = findings(*args, **more)
    assert [one["kind"] for one in found] == [kind], found
    return found[0]


def assert_clean() -> None:
    seen = reconcile()
    assert (seen["findings"], seen["not_asked"]) == ([], []), seen


def launcher_of(run: str, task: str = "main") -> int:
    (found,) = [one for one in inspect(run)["task_list"] if one["task_id"] == task]
    return int(found["launcher"]["pid"])


def end_launcher(run: str, task: str = "main") -> None:
    """SIGKILL the launcher, and wait until it is gone."""
    pid = launcher_of(run, task)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))


def orphan(*command: str, options: tuple[str, ...] = ()) -> str:
    """A run whose launcher is gone."""
    run = start(*(command or ("sleep", "900")), options=options)
    end_launcher(run)
    return run


def box_of(run: str, task: str = "main") -> Path:
    """The cgroup of a started task, as its record tells."""
    started = [record for record in records(run, "task.started") if record["task_id"] == task]
    return Path(started[-1]["box"]["cgroup"])


def box_pids(run: str) -> list[int]:
    return [member["pid"] for box in inspect(run)["boxes"] for member in box["processes"] or []]


def ended(run: str, status: int = 0) -> str:
    """Wait for a run's recorded end."""
    done = agentbox("wait", run)
    assert done.returncode == status, done
    wait_for(lambda: not inspect(run)["boxes"], what="the boxes were not removed")
    return run


def in_state(pid: int, letters: str) -> None:
    wait_for(lambda: (stat := read_stat(pid)) is not None and stat.state in letters, what=f"pid {pid} in {letters}")


def edit_record(run: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Change a run's record: `change` gets its records and alters them in place."""
    path = run_dir(run) / "manifest.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))


def end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


def aged(process: Path | int, seconds: float) -> None:
    """Wait until a process is so old: for what must not be judged young."""
    stat = read_stat(int(str(process)))
    assert stat is not None
    began = stat.start_ticks / os.sysconf("SC_CLK_TCK")
    wait_for(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) - began > seconds, seconds + 5)
