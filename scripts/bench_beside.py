"""What people would use instead, beside agentbox: bwrap on the host, systemd-run in a booted systemd, docker.

Each ratio is ours over theirs, whole processes in pairs: below 1 agentbox is the faster one. systemd-run's scope is
measured in the nspawn bed of the tests, docker against an engine of the bench's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench_launch import AGENTBOX, own_home, paired, row, timed, wait_for

from tests.beds.base import INSIDE
from tests.beds.dockerd import IMAGE, Dockerd
from tests.beds.dockerd import missing as dockerd_missing
from tests.beds.nspawn import Nspawn
from tests.beds.space import cgroup2_mount

BIND = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--die-with-parent"]
SLEEPERS = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 600 & done; wait"]
_names = (f"bench-{number}" for number in range(1 << 30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--inside", action="store_true", help="this is the booted systemd (set by the bench)")
    given = parser.parse_args()
    if given.inside:
        with own_home():
            beside_systemd(given.rounds)
        return
    with own_home():
        beside_bwrap(given.rounds)
        beside_docker(given.rounds)
    in_a_booted_systemd(given.rounds)


def beside_bwrap(rounds: int) -> None:
    theirs = ["bwrap", *BIND, "true"]
    if shutil.which("bwrap") is None or subprocess.run(theirs, check=False, capture_output=True).returncode:
        print("bwrap does not run here")
        return
    starts("cgroup", [], theirs, "bwrap true", rounds)


def beside_docker(rounds: int) -> None:
    if why := dockerd_missing() or ("no docker command" if shutil.which("docker") is None else None):
        print(f"docker does not run here: {why}")
        return
    engine = Dockerd()
    try:
        os.environ["DOCKER_HOST"] = engine.host
        image = ["--image", IMAGE]
        starts("docker", image, ["docker", "run", "--rm", IMAGE, "true"], "docker run --rm IMAGE true", rounds)

        def killed() -> float:
            name = next(_names)
            quiet("docker", "run", "-d", "--rm", "--name", name, IMAGE, *SLEEPERS)
            return timed(["docker", "kill", name])

        stops("docker", image, killed, "docker kill", rounds)
    finally:
        os.environ.pop("DOCKER_HOST", None)
        engine.remove()


def beside_systemd(rounds: int) -> None:
    theirs = ["systemd-run", "--scope", "--quiet", "true"]
    starts("systemd", [], theirs, "systemd-run --scope true", rounds)

    def killed() -> float:
        unit = f"{next(_names)}.scope"
        process = subprocess.Popen(["systemd-run", "--scope", "--quiet", f"--unit={unit}", *SLEEPERS])
        procs = Path("/sys/fs/cgroup/system.slice", unit, "cgroup.procs")  # a bed's is a pure cgroup v2
        wait_for(lambda: len(procs.read_text().split()) == 10)
        spent = timed(["systemctl", "kill", "--signal=KILL", unit])
        began = time.perf_counter()
        process.wait()
        return spent + time.perf_counter() - began

    stops("systemd", [], killed, "systemctl kill, and the wait for its end", rounds)


def in_a_booted_systemd(rounds: int) -> None:
    bed = Nspawn("bench")
    if why := bed.missing():
        print(f"systemd-run does not run here: {why}")
        return

    def fill(job: Path) -> None:
        (job / "run").write_text(
            f"#!/bin/sh\ncd {INSIDE}/tree && exec python3 scripts/bench_beside.py --inside --rounds {rounds}\n"
        )

    container = bed.boot(fill)
    try:
        container.process.wait()
        print(container.log())
    finally:
        container.stop()


def starts(backend: str, options: list[str], theirs: list[str], what: str, rounds: int) -> None:
    ours = [*AGENTBOX, "run", "--backend", backend, *options, "--", "true"]
    subprocess.run(ours, check=True, capture_output=True)
    row(f"run --backend {backend} -- true / {what}", "", paired(lambda: timed(ours), lambda: timed(theirs), rounds))


def stops(backend: str, options: list[str], theirs: Callable[[], float], what: str, rounds: int) -> None:
    def ours() -> float:
        name = next(_names)
        quiet(*AGENTBOX, "run", "-d", "--run-id", name, "--backend", backend, *options, "--", *SLEEPERS)
        wait_for(lambda: sum(count_of(box) for box in boxes(name)) >= 10)
        return timed([*AGENTBOX, "kill", name])

    row(f"kill of 10 processes, {backend} / {what}", "", paired(ours, theirs, rounds))


def boxes(run_id: str) -> Iterator[Path]:
    """The cgroups below a run's parent, wherever the backend puts it."""
    mount = cgroup2_mount()
    assert mount is not None
    for name in (run_id, f"agentbox-{run_id.replace('-', chr(92) + 'x2d')}.slice"):
        yield from (box for top in mount.glob(f"**/{name}") for box in top.glob("**/cgroup.procs"))


def count_of(procs: Path) -> int:
    return len(procs.read_text().split())


def quiet(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
