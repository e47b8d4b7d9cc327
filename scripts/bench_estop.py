"""How long an emergency stop takes: from the file to all frozen, and to all empty.

16 runs of 5 processes (one of them detached) under a running watch. The same tree is frozen bare first: one write
to `cgroup.freeze` a run, then all awaited. Budget: 20 ms from the file to the last run frozen.
"""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE))

from sandbox.kernel.cgroup import Cgroup  # noqa: E402
from sandbox.kernel.mounts import cgroup2_mount  # noqa: E402
from sandbox.manifest.fold import fold  # noqa: E402
from sandbox.manifest.home import Home  # noqa: E402
from sandbox.manifest.reader import read  # noqa: E402

AGENTBOX = [sys.executable, "-m", "sandbox.cli.main"]
AGENT = "sleep 900 & sleep 900 & sleep 900 & setsid sleep 900 & wait"
BUDGET_MS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=16)
    given = parser.parse_args()
    if os.geteuid() != 0 or cgroup2_mount() is None:
        sys.exit("bench_estop: needs root and a cgroup v2 mount")
    bare, frozen, empty = [], [], []
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(AGENTBOX_HOME=folder, PYTHONPATH=str(TREE))
            one = one_round(Home(folder), given.runs)
        for values, value in zip((bare, frozen, empty), one, strict=True):
            values.append(value * 1000)
        print(f"round {number + 1}: bare {bare[-1]:.1f}, frozen {frozen[-1]:.1f}, empty {empty[-1]:.1f} ms", flush=True)
    row("a bare write to cgroup.freeze of each run, all frozen", "", bare)
    row(f"EMERGENCY_STOP touched -> {given.runs} runs x 5 processes frozen", f"{BUDGET_MS} ms", frozen)
    row("the same -> all empty", "", empty)
    print(f"ratio frozen / bare: {statistics.median(frozen) / statistics.median(bare):.1f}")


def row(what: str, budget: str, values: list[float]) -> None:
    shown = " ".join(f"{v:8.2f}" for v in (statistics.median(values), min(values), max(values)))
    print(f"{what:62} {budget:>6} {shown} ms (median, min, max)")


def one_round(home: Home, runs: int) -> tuple[float, float, float]:
    """Seconds: bare, frozen, empty."""
    groups = [start(home) for _ in range(runs)]
    bare = freeze_bare(groups)
    watch = subprocess.Popen([*AGENTBOX, "watch"], stderr=subprocess.PIPE)
    try:
        assert watch.stderr is not None
        watch.stderr.readline()  # "watching"
        time.sleep(0.3)
        since = time.perf_counter()
        os.close(os.open(home.emergency_stop, os.O_WRONLY | os.O_CREAT, 0o600))
        frozen = await_all(groups, (b"frozen 1", b"populated 0")) - since
        empty = await_all(groups, (b"populated 0",)) - since
    finally:
        watch.send_signal(signal.SIGTERM)
        watch.wait()
    await_removal(groups)
    return bare, frozen, empty


def start(home: Home) -> Cgroup:
    command = [*AGENTBOX, "run", "-d", "--backend", "cgroup", "--", "sh", "-c", AGENT]
    run_id = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    box = fold(read(home.run_dir(run_id).manifest)).tasks["main"].box
    assert box is not None and box.cgroup is not None
    group = Cgroup(os.path.dirname(box.cgroup))
    while len(group.pids()) != 5:
        time.sleep(0.01)
    return group


def freeze_bare(groups: list[Cgroup]) -> float:
    since = time.perf_counter()
    for group in groups:
        group.freeze()
    until = await_all(groups, (b"frozen 1",))
    for group in groups:
        group.thaw()
    await_all(groups, (b"frozen 0",))
    return until - since


def await_all(groups: list[Cgroup], words: tuple[bytes, ...]) -> float:
    """When the last of the groups showed one of `words` in cgroup.events, or was gone (perf_counter)."""
    for group in groups:
        try:
            fd = os.open(f"{group.path}/cgroup.events", os.O_RDONLY)
        except FileNotFoundError:
            continue
        poll = select.poll()
        poll.register(fd, select.POLLPRI)
        try:
            while not any(word in os.pread(fd, 4096, 0) for word in words):
                poll.poll(50)
        except OSError:
            pass  # removed meanwhile
        os.close(fd)
    return time.perf_counter()


def await_removal(groups: list[Cgroup]) -> None:
    """The launchers outlive their runs for a moment: their home must not be removed under them."""
    while any(group.exists() for group in groups):
        time.sleep(0.01)
    time.sleep(0.3)


if __name__ == "__main__":
    if shutil.which("sleep") is None:
        sys.exit("bench_estop: needs sleep")
    main()
