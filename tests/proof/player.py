"""What the stories of tests.proof.machine are played with: verbs, each a fork of this process, and looks at it all."""

from __future__ import annotations

import collections
import gc
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.boxes.base import Box
from sandbox.boxes.docker_containers import Containers
from sandbox.control.status import status
from sandbox.kernel.identity import Identity, boot_id
from sandbox.manifest.home import Home
from tests.beds import space
from tests.beds.dockerd import IMAGE
from tests.cli.runs import parent_box
from tests.reconcile import looking
from tests.stop import rounds
from tests.stop.rounds import call, code_of, said, settled, until

COMMAND = ["sh", "-c", "sleep 900 & setsid sleep 900 & wait"]
seen: collections.Counter[str] = collections.Counter()


@dataclass
class Model:
    """What must be so of a run. `word`: its order. `stopped`: a stop of it was answered with 0, or it came to its end.

    `lost`: it ended without a word; `closed`: a reconcile has recorded that. `watched`: tasks whose launcher lives,
    `unwatched`: those whose launcher was killed.
    """

    run_id: str
    word: str = "RUN"
    stopped: bool = False
    lost: bool = False
    closed: bool = False
    watched: set[str] = field(default_factory=lambda: {"main"})
    unwatched: set[str] = field(default_factory=set)

    @property
    def live(self) -> bool:
        return not self.stopped and not self.lost

    @property
    def others(self) -> list[str]:
        """The live tasks but main."""
        return sorted((self.watched | self.unwatched) - {"main"})

    def ends(self) -> None:
        self.word, self.stopped, self.lost, self.watched, self.unwatched = "STOP", True, False, set(), set()

    def task_ends(self, task: str) -> None:
        self.watched.discard(task)
        self.unwatched.discard(task)
        # A task was started in a run that had been lost, and nothing is left of it once more.
        self.lost = not self.watched | self.unwatched


@dataclass(frozen=True)
class Seen:
    """A task: its recorded process, its box's processes, its order's file and the one with its changes of plan."""

    process: Identity
    members: frozenset[int]
    order: bytes
    steer: bytes


class Player:
    """One home, and the backend of its runs."""

    def __init__(self, backend: str) -> None:
        self.home = Home.locate().ensure()
        self.backend = backend
        self.twin = os.posix_spawnp("sleep", ["sleep", "900"], os.environ, setpgroup=0)

    def launch(self, *words: str) -> int:
        """`run` or `spawn` of the usual command, detached."""
        kind = ["--image", IMAGE] if self.backend == "docker" else ["--backend", self.backend]
        return self.verb(words[0], "-d", *words[1:], *kind, "--", *COMMAND)

    def verb(self, *words: str, out: str = os.devnull) -> int:
        # The connections of this process are no business of a fork, which has closed their numbers.
        gc.freeze()
        pid = call(*words, out=out)
        gc.unfreeze()
        code = code_of(pid, words[0])
        text = said(pid)
        seen[f"{words[0]} {code}"] += 1
        assert "Traceback" not in text and "unexpected" not in text, (words, text)
        return code

    def told(self, *words: str) -> tuple[int, Any]:
        """The exit status, and what it printed as JSON."""
        out = f"{self.home.path}.json"
        code = self.verb(*words, out=out)
        return code, json.loads(Path(out).read_text() or "null")

    def findings(self, *options: str) -> list[dict[str, Any]]:
        """What `reconcile --json` finds; with --kill, what it leaves of it."""
        code, found = self.told("reconcile", "--json", *options)
        strangers = [one for one in found["findings"] if looking.foreign(one)]
        found["findings"] = [one for one in found["findings"] if not looking.foreign(one)]
        expected = 0 if options or not found["findings"] else 1
        assert code == expected or (strangers and code == 1), (code, found)
        assert found["not_asked"] == []
        seen.update(f"finding {one['kind']}" for one in found["findings"])
        ended = {(one["kind"], one["run_id"], one["task_id"]) for one in found.get("ended", ()) if one["ok"]}
        left = [one for one in found["findings"] if (one["kind"], one["run_id"], one["task_id"]) not in ended]
        return left if options else list(found["findings"])

    def redirect(self, run_id: str, rows: Sequence[dict[str, str]]) -> int:
        table = Path(f"{self.home.path}.table")
        table.write_text(json.dumps({"tasks": rows}))
        return self.verb("redirect", run_id, "--table", str(table), "--grace", "0", "--term", "0.2s")

    def look_at(self, run: Model, task: str) -> Seen:
        one, files = status(self.home, run.run_id).run.tasks[task], self.home.run_dir(run.run_id)
        assert one.pid is not None and one.start_ticks is not None
        steer = Path(files.steer(task))
        return Seen(
            Identity(boot_id(), one.pid, one.start_ticks),
            frozenset(self.members(run.run_id, task)),
            Path(files.task_order(task)).read_bytes(),
            steer.read_bytes() if steer.exists() else b"",
        )

    def members(self, run_id: str, task: str) -> list[int]:
        box = parent_box(run_id)
        return space.members(box / task) if box else []

    def lives_on(self, run: Model, task: str, before: Seen, steer: bytes) -> None:
        """The very processes that it had live, its order is the same, and its changes of plan are `steer`."""
        now = self.look_at(run, task)
        assert before.process.alive() and before.members and before.members <= now.members, (run, task, before, now)
        assert (now.process, now.order, now.steer) == (before.process, before.order, steer), (run, task, before, now)

    def others(self) -> list[int]:
        settled()
        return [pid for pid in rounds.children() if pid != self.twin and space.is_alive(pid)]

    def power_cut(self, run_ids: Sequence[str]) -> None:
        """All of them end at once, and what watched them."""
        boxes = [box for run_id in run_ids if (box := parent_box(run_id))]
        for pid in self.others():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for box in boxes:
            assert space.end_tree(box)
        until(lambda: settled() or not self.others(), "the power cut")
        if self.backend == "docker":
            until(lambda: all(self.containers(run_id, lambda one: one.down) for run_id in run_ids), "the engine's word")

    def containers(self, run_id: str, each: Callable[[Any], bool]) -> bool:
        """Is it so of each container of the run?"""
        return all(map(each, Containers(self.home.path, print).of(Box("docker", "", run_id, None))))

    def remove(self, run_ids: Sequence[str]) -> None:
        """What may be left of them at the end of a story."""
        for run_id in run_ids:
            if box := parent_box(run_id):
                space.end_tree(box)
            if self.backend == "docker":
                Containers(self.home.path, print).remove(Box("docker", "", run_id, None))
        until(settled, "an end of all processes")


def marked(run_id: str) -> list[int]:
    """Live processes that carry the run's id in their environment, wherever they are; not its launchers."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and f"AGENTBOX_RUN_ID={run_id}\0".encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return [pid for pid in found if space.is_alive(pid)]
