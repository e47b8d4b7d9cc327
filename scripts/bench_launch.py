"""The budgets of run, kill, gate and memory, each as a ratio to something bare in the same run.

Whole processes are timed in pairs, A B A B …, and the ratio is taken pair by pair: the machine's speed drifts,
a pair shares it. The median is what counts; minimum and maximum show how noisy the machine was.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TREE))

from sandbox.boxes.cgroup import CgroupBackend  # noqa: E402
from sandbox.control import orders  # noqa: E402
from sandbox.control.request import target_of  # noqa: E402
from sandbox.control.stop import begin, freeze_as_found  # noqa: E402
from sandbox.kernel.cgroup import Cgroup  # noqa: E402
from sandbox.kernel.kill import kill_tree  # noqa: E402
from sandbox.kernel.mounts import cgroup2_mount  # noqa: E402
from sandbox.kernel.procfs import started_at  # noqa: E402
from sandbox.manifest.home import Home  # noqa: E402

AGENTBOX = [sys.executable, "-m", "sandbox.cli.main"]
TYPER = [sys.executable, "-c", "import typer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    rounds = given.rounds
    with own_home():
        whole_processes(rounds)
        gates(rounds * 4)
        memory()
        for count in (100, 1000):
            freezing(count, max(5, rounds // 3))
            killing(count, max(5, rounds // 3))


@contextlib.contextmanager
def own_home() -> Iterator[None]:
    """A state directory of the bench's own, and the head of its table."""
    if os.geteuid() != 0 or cgroup2_mount() is None:
        sys.exit("bench: needs root and a cgroup v2 mount")
    with tempfile.TemporaryDirectory() as folder, environment({"AGENTBOX_HOME": folder, "PYTHONPATH": str(TREE)}):
        print(f"{'what':70} {'budget':>8} {'median':>8} {'min':>8} {'max':>8}")
        yield


def row(what: str, budget: str, values: list[float], unit: str = "") -> None:
    shown = [f"{v:.2f}{unit}" for v in (statistics.median(values), min(values), max(values))]
    print(f"{what:70} {budget:>8} {shown[0]:>8} {shown[1]:>8} {shown[2]:>8}", flush=True)


def timed(argv: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return time.perf_counter() - start


def paired(ours: Callable[[], float], bare: Callable[[], float], rounds: int) -> list[float]:
    ours(), bare()
    return [ours() / bare() for _ in range(rounds)]


def whole_processes(rounds: int) -> None:
    run = [*AGENTBOX, "run", "--backend", "cgroup", "--", "true"]
    row("run -- true / python -c 'import typer'", "2.0", paired(lambda: timed(run), lambda: timed(TYPER), rounds))

    def kill() -> float:
        name = f"bench-{time.monotonic_ns()}"
        script = "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait"
        subprocess.run([*AGENTBOX, "run", "-d", "--run-id", name, "--", "sh", "-c", script], check=True, stdout=-3)
        wait_for(lambda: len(Cgroup(f"{top()}/{name}").pids()) == 10)
        return timed([*AGENTBOX, "kill", name])

    row("kill RUN, 10 processes / python -c 'import typer'", "2.0", paired(kill, lambda: timed(TYPER), rounds))


def gates(rounds: int) -> None:
    """The gate where it lets a call go on, in sh and in Python, each beside an interpreter that does nothing."""
    run = Home(os.environ["AGENTBOX_HOME"]).ensure().run_dir("gates").create()
    for path in (run.control, run.task_order("t1")):
        orders.create_order(path, by="bench")
    named = {"AGENTBOX_CONTROL": run.control, "AGENTBOX_BEAT": run.beat("t1"), "AGENTBOX_TASK_ID": "t1"}
    named["AGENTBOX_BOOT"] = str(int(started_at(0) * 100))
    harness = f"{TREE}/sandbox/harness"
    shell, python = ["sh", "-c", ":"], [sys.executable, "-I", "-c", "pass"]
    with environment(named):
        assert subprocess.run(["sh", f"{harness}/gate.sh", "gate", "Bash"], check=False).returncode == 0
        for verb in ("gate", "tick"):
            ours = ["sh", f"{harness}/gate.sh", verb, "Bash"]
            row(f"gate.sh {verb} / sh -c :", "3", paired(lambda o=ours: timed(o), lambda: timed(shell), rounds))
            ours = [sys.executable, "-I", "-S", f"{harness}/gate.py", verb, "Bash"]
            what = f"gate.py {verb} / python -I -c pass"
            row(what, "1.5", paired(lambda o=ours: timed(o), lambda: timed(python), rounds))
        ours = [sys.executable, "-c", "from sandbox.cli.entry import main; main()", "gate", "Bash"]
        row("agentbox gate / python -I -c pass", "1.5", paired(lambda: timed(ours), lambda: timed(python), rounds))


@contextlib.contextmanager
def environment(named: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(named)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def memory() -> None:
    """Resident memory of the launcher while the command runs, in MiB."""
    process = subprocess.Popen(
        [*AGENTBOX, "run", "--run-id", "resident", "--", "sleep", "600"], stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().strip() != "")
        wait_for(lambda: "task.started" in manifest("resident"))
        time.sleep(0.2)
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) / 1024
        row("launcher's resident memory, MiB", "20", [resident])
        timed([*AGENTBOX, "kill", "resident"])
    finally:
        process.wait()


def manifest(run_id: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"{os.environ['AGENTBOX_HOME']}/runs/{run_id}/manifest.jsonl").read_text()
    return ""


def freezing(count: int, rounds: int) -> None:
    """From the order written to all frozen, beside a bare write to cgroup.freeze on the same tree."""
    home = Home(os.environ["AGENTBOX_HOME"])

    def ours(group: Cgroup, run_id: str) -> float:
        target = target_of(home, run_id)
        target.locate()
        stop = begin(target, "bench", "bench")
        start = time.perf_counter()
        for backend, box in freeze_as_found(target):
            backend.freeze(box, time.monotonic() + 10)
        spent = time.perf_counter() - start
        assert stop.ordered_at and group.event("frozen")
        return spent

    def bare(group: Cgroup, run_id: str) -> float:
        start = time.perf_counter()
        group.write("cgroup.freeze", "1")
        assert group.wait("frozen", True, time.monotonic() + 10)
        return time.perf_counter() - start

    values = []
    for number in range(rounds):
        with fleet(count) as (group, run_id):
            spent = {}
            # Each first in turn: a fleet that was just forked is slower to freeze than one that was frozen before.
            for way in (ours, bare) if number % 2 else (bare, ours):
                spent[way] = way(group, run_id)
                group.thaw()
                group.wait("frozen", False, time.monotonic() + 10)
                # The kernel holds notifications of one file 10 ms apart: the second way would wait for the first's.
                time.sleep(0.02)
            values.append(spent[ours] / spent[bare])
    row(f"order to frozen, {count} processes / cgroup.freeze", "1.5", values)


def killing(count: int, rounds: int) -> None:
    """The kill phase to `populated 0`, beside a bare write to cgroup.kill on an equal tree."""

    def ours() -> float:
        with fleet(count) as (group, _):
            start = time.perf_counter()
            assert kill_tree(group, time.monotonic() + 30) is False
            return time.perf_counter() - start

    def bare() -> float:
        with fleet(count) as (group, _):
            start = time.perf_counter()
            group.write("cgroup.kill", "1")
            assert group.wait("populated", False, time.monotonic() + 30) is False
            return time.perf_counter() - start

    row(f"kill phase, {count} processes / cgroup.kill", "1.2", paired(ours, bare, rounds))


@contextlib.contextmanager
def fleet(count: int) -> Iterator[tuple[Cgroup, str]]:
    """A run's parent cgroup of this home with `count` sleeping processes in one task's box."""
    home = Home(os.environ["AGENTBOX_HOME"]).ensure()
    run_id = f"bench-{time.monotonic_ns()}"
    orders.write_order(home.run_dir(run_id).create().control, "RUN")
    parent = Cgroup(f"{top()}/{run_id}")
    os.makedirs(f"{parent.path}/main")
    CgroupBackend(home.path)
    script = (
        f"import os,time\nopen('{parent.path}/main/cgroup.procs','w').write('0')\n"
        f"[os.fork() or (time.sleep(600), os._exit(0)) for _ in range({count - 1})]\nprint(flush=True)\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline()
        yield parent, run_id
    finally:
        kill_tree(parent, time.monotonic() + 30)
        process.wait()
        parent.remove()


def top() -> str:
    mount = cgroup2_mount()
    assert mount
    return f"{mount.point}/agentbox"


def wait_for(condition: Callable[[], object], seconds: float = 20) -> str:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, IndexError):
            if value := condition():
                return str(value)
        time.sleep(0.005)
    raise TimeoutError("bench: what was waited for did not come")


if __name__ == "__main__":
    main()
