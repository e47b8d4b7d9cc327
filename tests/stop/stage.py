"""An agent of agents.py in a run, and the same argv beside it as a bystander: what is stopped, and what is not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.beds.space import start_ticks
from tests.support import agentbox, is_alive, wait_for

AGENTS = Path(__file__).with_name("agents.py")
LOOKS = 10
"""In a row that meet nobody, before a bystander that hops from pid to pid counts as ended."""
BACKEND = {"host": "cgroup", "nspawn": "systemd", "nspawn-user": "systemd", "vm": "systemd"}


def agent(name: str) -> list[str]:
    """The command line of an agent."""
    return [sys.executable, str(AGENTS), name]


def new_id(name: str = "t") -> str:
    """A run id that no other session uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def unboxed() -> dict[str, str]:
    """The environment of what runs beside the run."""
    return {key: value for key, value in os.environ.items() if key != "AGENTBOX_RUN_ID"}


class Stage:
    """A run of `argv` and its twin; `folder` is the run's directory, `outside` the twin's."""

    def __init__(self, argv: list[str], bed: str, tmp_path: Path, run_id: str = "") -> None:
        self.argv = argv
        self.backend = BACKEND[bed]
        self.run_id = run_id or new_id()
        self.folder, self.outside = tmp_path / "in", tmp_path / "out"
        for folder in (self.folder, self.outside):
            folder.mkdir()
        self.twin = subprocess.Popen(argv, cwd=self.outside, env=unboxed(), start_new_session=True)

    def start(self, *options: str, argv: Sequence[str] = ()) -> None:
        """`agentbox run -d` of the twin's command line (or of `argv`), until the agent says that it is ready."""
        given = ["-d", "--run-id", self.run_id, "--backend", self.backend, *options]
        done = agentbox("run", *given, "--", *(argv or self.argv), cwd=self.folder, check=0)
        assert done.stdout == f"{self.run_id}\n"
        self.wait_ready()

    def wait_ready(self) -> None:
        for folder in (self.folder, self.outside):
            wait_for((folder / "ready").exists, 60, f"{folder}/ready")
        wait_for((self.outside / "beat-main").exists)

    def close(self) -> None:
        """End the run and the twin, whatever the test came to."""
        agentbox("kill", self.run_id)
        wait_for(lambda: not any(end_all_in(self.outside) for _ in range(LOOKS)), 60, "the bystander cannot be ended")
        self.twin.wait()

    # what is seen

    def kill(self, *args: str, check: int = 0) -> dict[str, Any]:
        """`agentbox kill --json`: the one receipt."""
        return receipt("kill", self.run_id, *args, check=check)

    def inspect(self) -> dict[str, Any]:
        return inspect(self.run_id)

    def beats(self) -> dict[str, int]:
        """The size of each heartbeat of the run, and the step files."""
        return {path.name: path.stat().st_size for path in self.folder.iterdir() if not path.name.startswith(".")}

    def twin_beats_on(self, times: int = 5) -> None:
        """Wait until the bystander has beaten `times` times more: as long, a process of the run would have too."""
        file = self.outside / "beat-main"
        size = file.stat().st_size
        wait_for(lambda: file.stat().st_size >= size + times, what="the bystander does not beat")

    def registered_alive(self) -> list[str]:
        """Those of the run's registered processes that live."""
        return [name for name, pid, ticks in registered(self.folder) if alive(pid, ticks)]

    def assert_stopped(self, found: dict[str, Any] | None) -> None:
        """Nothing of the run lives or moves, the twin does; the receipt names who was ended."""
        before = self.beats()
        assert self.registered_alive() == []
        self.twin_beats_on()
        assert self.beats() == before
        if found is not None:
            assert found["proof"] == "empty" and found["survivors"] == []
            assert found["empty_at"] and found["processes"]
            for process in found["processes"]:
                assert process["argv"] or process["state"] == "Z" or process["comm"], process
        assert agentbox("wait", self.run_id).returncode == 137
        seen = self.inspect()
        assert (seen["state"], seen["processes"]) == ("stopped", 0), seen
        wait_for(lambda: not self.inspect()["boxes"], what="the boxes were not removed")
        assert is_alive(self.twin.pid)


def receipt(verb: str, run_id: str, *args: str, check: int = 0) -> dict[str, Any]:
    """`agentbox kill --json` or abort, of one run."""
    (found,) = json.loads(agentbox(verb, run_id, "--json", *args, check=check).stdout)
    assert found["run_id"] == run_id
    return dict(found)


def inspect(run_id: str) -> dict[str, Any]:
    """`agentbox inspect`, parsed."""
    return dict(json.loads(agentbox("inspect", run_id, check=0).stdout))


def end_all_in(folder: Path) -> list[int]:
    """SIGKILL each process that works in `folder`, and say who. The youngest first: it may be another pid soon."""
    found = []
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        with contextlib.suppress(OSError):
            if str(folder) in _folders_of(pid):
                found.append(pid)
                os.kill(pid, signal.SIGKILL)
    return found


def _folders_of(pid: int) -> list[str]:
    """Where it works; of a process whose first thread has ended the others tell."""
    try:
        return [os.readlink(f"/proc/{pid}/cwd")]
    except FileNotFoundError:
        threads = [f"/proc/{pid}/task/{name}/cwd" for name in os.listdir(f"/proc/{pid}/task") if name != str(pid)]
        return [os.readlink(path) for path in threads]


def registered(folder: Path) -> list[tuple[str, int, int]]:
    """Who wrote a pid file there: name, pid, start ticks."""
    found = []
    for path in folder.glob("pid-*"):
        pid, ticks = path.read_text().split()
        found.append((path.name.removeprefix("pid-"), int(pid), int(ticks)))
    return found


def alive(pid: int, ticks: int) -> bool:
    """Whether that very process lives."""
    return is_alive(pid) and start_ticks(pid) == ticks
