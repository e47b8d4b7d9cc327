#!/usr/bin/env python3
"""Measure `agentbox reconcile` against its budget: time, memory, and how both grow.

usage: scripts/bench_reconcile [--boxes 100,300,1000] [--processes 10] [--records 100] [--rounds 3] [--json]

Makes a state directory and real cgroups of its own with real processes in them (root, cgroup v2; else it says so and
ends with 2): for each size BOXES boxes, each with so many sleepers, each run with so many records. Then runs the
whole command, and beside it a bare walk that only reads `cgroup.procs` of the boxes and `cmdline` of the processes,
which is what the ratio is to. All is removed at the end, also after Ctrl+C. Last, one dimension at a time is varied.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE))

from sandbox.boxes.cgroup import mark_home  # noqa: E402
from sandbox.kernel.cgroup import Cgroup  # noqa: E402
from sandbox.kernel.identity import Identity  # noqa: E402
from sandbox.kernel.kill import kill_tree  # noqa: E402
from sandbox.kernel.mounts import cgroup2_mount  # noqa: E402
from sandbox.manifest.home import Home  # noqa: E402
from sandbox.manifest.record import encode, make  # noqa: E402

SECONDS, MEBIBYTES = 1.5, 100.0
"""The budget, at 1,000 boxes, 10,000 processes, 100,000 records."""
MOST_PROCESSES = 12_000
"""At most so many at once, and never more than a third of what the machine allows in all."""
SLEEPERS = 'echo 0 > "$1/cgroup.procs"; n=1; while [ $n -lt "$2" ]; do sleep 900 & n=$((n+1)); done; exec sleep 900'


class Machine:
    """A state directory with live runs in real cgroups, all watched by this process as their launcher."""

    def __init__(self, boxes: int, processes: int, records: int, ended: int = 0) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="agentbox-bench-"))
        self.home = Home(str(self.folder / "home")).ensure()
        mount = cgroup2_mount()
        assert mount is not None
        own = Identity.of(os.getpid())
        assert own is not None
        self.top = Path(mount.point) / f"testbed.{own.pid}.{own.start_ticks}.bench" / "agentbox"
        self.top.mkdir(parents=True)
        self.shells: list[subprocess.Popen[bytes]] = []
        self.shape = (boxes, processes, records)
        self.launcher = {"pid": own.pid, "start_ticks": own.start_ticks}
        for number in range(boxes):
            self._run(f"b{number:05}", processes, records)
        for number in range(ended):
            self._records(f"e{number:05}", records, None)

    def _run(self, run_id: str, processes: int, records: int) -> None:
        box = self.top / run_id / "main"
        box.mkdir(parents=True)
        mark_home(str(box.parent), self.home.path)
        if processes:
            sleeper = ["busybox", "sh"] if shutil.which("busybox") else ["sh"]
            # Bounded: each is a fork of a small shell, and ends with its cgroup.
            command = [*sleeper, "-c", SLEEPERS, "sh", str(box), str(processes)]
            self.shells.append(subprocess.Popen(command, start_new_session=True))
        self._records(run_id, records, box)

    def _records(self, run_id: str, count: int, box: Path | None) -> None:
        run = self.home.run_dir(run_id).create()
        Path(run.control).write_text("RUN 1\n")
        argv = ["agent", "--model", "large", "--prompt", "do the work " * 6]
        lines = [self._line(run_id, "run.created", argv=argv, cwd="/", backend="cgroup", main_task="main")]
        lines += self._task(run_id, "main", argv, box)
        while len(lines) < count - 1:
            task = f"t{len(lines)}"
            lines += self._task(run_id, task, argv, box)
            lines.append(self._line(run_id, "task.exited", task, code=0, outcome="exited", leftovers=[]))
            lines.append(self._line(run_id, "note", task, text="a limit was given up"))
        if box is None:
            lines.append(self._line(run_id, "run.ended", code=0, outcome="exited"))
        Path(run.manifest).write_bytes(b"".join(lines[-count:] if box is None else lines[:count]))

    def _task(self, run_id: str, task: str, argv: list[str], box: Path | None) -> list[bytes]:
        where = {"backend": "cgroup", "id": str(box), "cgroup": str(box), "cgroup_inode": 1}
        intent = self._line(run_id, "task.intent", task, argv=argv, backend="cgroup", launcher=self.launcher)
        started = self._line(
            run_id, "task.started", task, pid=1, start_ticks=1, box=where, argv=argv, launcher=self.launcher
        )
        return [intent, started]

    def _line(self, run_id: str, event: str, task: str | None = None, **fields: object) -> bytes:
        return encode(make(run_id, event, task_id=task, **fields) | {"prev": "0" * 64})

    def settle(self) -> int:
        """Wait until all processes are there; how many there are."""
        boxes, processes, _ = self.shape
        deadline = time.monotonic() + 120
        while (count := len(Cgroup(str(self.top)).pids())) < boxes * processes and time.monotonic() < deadline:
            time.sleep(0.1)
        return count

    def remove(self) -> None:
        group = Cgroup(str(self.top.parent))
        kill_tree(group, time.monotonic() + 60)
        for shell in self.shells:
            shell.wait()
        group.remove()
        shutil.rmtree(self.folder)


def measure(home: Home, rounds: int) -> tuple[float, float, float, int]:
    """The best time and processor time (seconds), the largest resident memory (MiB), and the number of findings."""
    env = {**os.environ, "AGENTBOX_HOME": home.path, "PYTHONPATH": str(TREE)}
    best, work, memory, found = float("inf"), float("inf"), 0.0, -1
    for _ in range(rounds):
        with tempfile.TemporaryFile() as out:
            began = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "sandbox.cli.main", "reconcile", "--json"], stdout=out, env=env
            )
            _, _, usage = os.wait4(process.pid, 0)
            best = min(best, time.monotonic() - began)
            work = min(work, usage.ru_utime + usage.ru_stime)
            memory = max(memory, usage.ru_maxrss / 1024)
            out.seek(0)
            found = len(json.load(out)["findings"])
    return best, work, memory, found


def bare(top: Path, rounds: int) -> float:
    """The least that any look costs: each box's processes, and each one's command line."""
    best = float("inf")
    for _ in range(rounds):
        began = time.monotonic()
        for run in (entry for entry in os.scandir(top) if entry.is_dir()):
            for word in Path(run.path, "main", "cgroup.procs").read_bytes().split():
                Path("/proc", word.decode(), "cmdline").read_bytes()
        best = min(best, time.monotonic() - began)
    return best


def too_many(processes: int) -> str:
    """Why so many processes are not to be made here, or ""."""
    room = [int(Path("/proc/sys/kernel", name).read_text()) // 3 for name in ("pid_max", "threads-max")]
    most = min(MOST_PROCESSES, *room)
    return f"{processes} processes at once are too many here: at most {most}" if processes > most else ""


def one(boxes: int, processes: int, records: int, rounds: int, ended: int = 0) -> dict[str, float]:
    machine = Machine(boxes, processes, records, ended)
    try:
        count = machine.settle()
        seconds, work, memory, found = measure(machine.home, rounds)
        floor = bare(machine.top, rounds) if processes else 0.0
    finally:
        machine.remove()
    return {
        "boxes": boxes,
        "processes": count,
        "records": (boxes + ended) * records,
        "ended": ended,
        "seconds": round(seconds, 3),
        "cpu": round(work, 3),
        "mebibytes": round(memory, 1),
        "bare": round(floor, 3),
        "ratio": round(seconds / floor, 2) if floor else 0.0,
        "findings": found,
    }


def told(row: dict[str, float], before: dict[str, float] | None) -> str:
    growth = ""
    if before and before["boxes"] != row["boxes"]:
        growth = f"{row['seconds'] / before['seconds']:.2f} x for {row['boxes'] / before['boxes']:.2f} x"
    names = ("boxes", "processes", "records", "ended", "seconds", "cpu", "mebibytes", "bare", "ratio", "findings")
    return "  ".join(f"{row[name]:>9}" for name in names) + f"  {growth}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", default="100,300,1000")
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if os.geteuid() != 0 or cgroup2_mount() is None:
        print("needs root and a cgroup v2 mount", file=sys.stderr)
        return 2
    sizes = [int(size) for size in given.boxes.split(",")]
    shapes = [(size, given.processes, given.records, 0) for size in sizes]
    small = min(sizes)
    shapes += [(small, given.processes * 5, given.records, 0), (small, given.processes, given.records * 10, 0)]
    shapes.append((small, given.processes, given.records, small * 9))
    if why := too_many(max(boxes * processes for boxes, processes, _, _ in shapes)):
        print(why, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows: list[dict[str, float]] = []
    heads = ("boxes", "processes", "records", "ended", "seconds", "cpu s", "MiB", "bare s", "ratio", "findings")
    if not given.json:
        print("  ".join(f"{name:>9}" for name in heads) + "  growth", flush=True)
    for boxes, processes, records, ended in shapes:
        rows.append(one(boxes, processes, records, given.rounds, ended))
        if not given.json:
            print(told(rows[-1], rows[-2] if len(rows) > 1 else None), flush=True)
    over = [row for row in rows if row["seconds"] > SECONDS or row["mebibytes"] > MEBIBYTES]
    if given.json:
        print(json.dumps({"rows": rows, "budget": {"seconds": SECONDS, "mebibytes": MEBIBYTES}, "over": len(over)}))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
