"""How the stop grows: the freeze and the kill phase by number of processes, and `kill --all` by number of runs."""

from __future__ import annotations

import argparse
import contextlib

from bench_launch import AGENTBOX, TYPER, fleet, freezing, killing, own_home, paired, row, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with own_home():
        for count in (10, 100, 1000, 5000):
            freezing(count, rounds)
            killing(count, rounds)
        for runs in (1, 16, 64):
            ratios = paired(lambda runs=runs: kill_all(runs), lambda: timed(TYPER), rounds)  # type: ignore[misc]
            row(f"kill --all, {runs} runs of 5 processes / python -c 'import typer'", "", ratios)


def kill_all(runs: int) -> float:
    """Seconds of `kill --all`, the whole process."""
    with contextlib.ExitStack() as fleets:
        for _ in range(runs):
            fleets.enter_context(fleet(5))
        return timed([*AGENTBOX, "kill", "--all"])


if __name__ == "__main__":
    main()
