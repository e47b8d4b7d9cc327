"""What nobody looks after any more, among things that look alike and are at work."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cli.runs import start
from tests.reconcile.looking import box_pids, end, end_launcher
from tests.reconcile.test_escapees import asleep
from tests.reconcile.test_ghosts import STUBBORN, Agent
from tests.support import agentbox, is_alive, wait_for


@dataclass
class LeftBehind:
    """`unwanted`: the run of each finding that there should be; `spared`: runs and pids of which there is none."""

    unwanted: dict[str, str]
    spared: list[str]

    def told(self, text: str) -> bool:
        """Does each finding stand on a line of `text`, with its run? Nothing that is spared may stand anywhere."""
        for word in self.spared:
            assert not re.search(rf"\b{word}\b", text), (word, text)
        lines = text.splitlines()
        return all(any(kind in line and run in line for line in lines) for kind, run in self.unwanted.items())


@contextlib.contextmanager
def left_behind(folder: Path) -> Iterator[LeftBehind]:
    """An orphan, a ghost and an escapee; a live run, the person's own server, and a process of the orphan's argv."""
    nap = f"9{os.getpid():07}"
    plain = subprocess.Popen(["sleep", nap])
    own = subprocess.Popen(STUBBORN, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    runs = [start("sleep", nap), start("sleep", nap)]
    live, orphan = runs
    try:
        end_launcher(orphan)
        agent = Agent(folder / "agent", {"deploy": STUBBORN})
        runs.append(agent.run)
        client = agent.client
        end_launcher(agent.run)
        os.kill(client, signal.SIGKILL)
        runs.append(start("sh", "-c", f"systemd-run -q --scope sleep {nap}5 & sleep 900"))
        wait_for(lambda: asleep(f"{nap}5"), 30)
        unwanted = {"orphan": orphan, "ghost": agent.run, "escapee": runs[-1]}
        yield LeftBehind(unwanted, [live, str(plain.pid), str(own.pid)])
        assert is_alive(plain.pid) and is_alive(own.pid) and len(box_pids(live)) == 1
        assert len(box_pids(orphan)) == 1 and asleep(f"{nap}5"), "something was ended that was only to be told"
    finally:
        for run in runs:
            agentbox("kill", run)
        for pid in asleep(f"{nap}5"):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not asleep(f"{nap}5"))
        assert own.stdin is not None
        own.stdin.close()
        for process in (plain, own):
            end(process)
