"""What the hostile agents share: where agentbox keeps the run's files, and the helpers of the agents in tests/stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.stop.agents import BOXED, INTERVAL, beat, child, main_beats, own_cgroup, register

__all__ = ["BOXED", "INTERVAL", "again", "beat", "child", "main_beats", "memory_of"]
__all__ += ["own_cgroup", "register", "run_dir"]


def again(name: str, *words: bytes | str, bare: bool = False) -> None:
    """Become another agent of this folder by exec; `bare`: without any environment."""
    argv = [sys.executable, str(Path(__file__).with_name("run.py")), name, *words]
    os.execve(sys.executable, argv, {} if bare else os.environ)


def run_dir() -> Path:
    """The run's directory; the bystander, which has none, gets one of its own to be bad in."""
    if BOXED:
        return Path(os.environ["AGENTBOX_CONTROL"]).parents[1]
    mine = Path("own")
    for part in ("ctl/tasks", "beat", "steer", "out"):
        (mine / part).mkdir(parents=True, exist_ok=True)
    for file in ("manifest.jsonl", "ctl/control", "ctl/tasks/main"):
        (mine / file).touch()
    return mine


def memory_of(first: int) -> tuple[int, int]:
    """Begin and length of our argv (48) or environment (50) in our own memory, by field number of proc_pid_stat(5)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[number - 3]) for number in (first, first + 1))
    return begin, end - begin
