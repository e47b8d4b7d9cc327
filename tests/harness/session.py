"""One omp in a box, told what to do over its RPC mode, with a scripted model behind it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

from sandbox.harness.beat import Mark, marks
from sandbox.manifest.home import Home, RunDir
from tests.harness.model import Model
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

PROVIDER = """providers:
  scripted:
    baseUrl: {url}
    apiKey: none
    api: openai-completions
    models:
      - id: scripted
        name: Scripted
        reasoning: false
        input: [text]
        contextWindow: 128000
        maxTokens: 4096
"""
HANDLER_SECONDS = 1.5
"""What omp gives an extension's handler; 30 s where nothing is configured, and tests need not be that long."""
CONFIG = f"extensionHandlers:\n  toolCallTimeoutMs: {HANDLER_SECONDS * 1000:.0f}\n"
ARGUMENTS = ["--mode", "rpc", "--no-session", "--auto-approve", "--model", "scripted/scripted"]
START = 60.0


class Session:
    """omp as the task `task` of run `run_id`, started by `agentbox VERB`, working in `folder`.

    `installed`: a person has said `agentbox hooks install omp` before.
    """

    def __init__(
        self, binaries: Path, model: Model, home: Path, folder: Path, verb: list[str], task: str, installed: bool
    ) -> None:
        self.model = model
        self.folder = folder
        self.run_id = verb[1] if verb[0] == "spawn" else verb[verb.index("--run-id") + 1]
        self.run: RunDir = Home(str(home)).run_dir(self.run_id)
        self.task = task
        self.events: list[dict[str, Any]] = []
        agent = folder.with_name("person") / ".omp" / "agent"
        agent.mkdir(parents=True)
        (agent / "models.yml").write_text(PROVIDER.format(url=model.url))
        (agent / "config.yml").write_text(CONFIG)
        folder.mkdir()
        env = agentbox_env(home, HOME=str(folder.with_name("person")), PI_NO_TITLE="1")
        if installed:
            agentbox("hooks", "install", "omp", "--yes", env={"HOME": env["HOME"]}, check=0)
        env["PATH"] = f"{binaries}{os.pathsep}{env['PATH']}"
        self.process = subprocess.Popen(
            agentbox_argv(*verb, "--", "omp", *ARGUMENTS),
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait("ready", START)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                continue

    def prompt(self, text: str) -> None:
        """Give it something to do."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"type": "prompt", "message": text}) + "\n")
        self.process.stdin.flush()

    def seen(self, kind: str, after: int = 0) -> list[dict[str, Any]]:
        """The events of a type, from number `after` on."""
        return [event for event in list(self.events)[after:] if event.get("type") == kind]

    def wait(self, kind: str, seconds: float = 30, after: int = 0) -> dict[str, Any]:
        """Wait for such an event and give the first."""
        return wait_for(lambda: self.seen(kind, after) or self._ended(kind), seconds, f"event {kind}")[0]

    def _ended(self, kind: str) -> list[dict[str, Any]]:
        if self.process.poll() is not None:
            assert self.process.stderr
            raise AssertionError(f"omp ended before {kind}: {self.process.stderr.read()}")
        return []

    def marks(self) -> list[Mark]:
        """What the extension has marked."""
        return marks(self.run.beat(self.task))

    def words(self) -> list[str]:
        return [mark.word for mark in self.marks()]

    def steps(self) -> list[str]:
        """What the agent's calls have done."""
        path = self.folder / "steps"
        return path.read_text().split() if path.exists() else []

    def let_go(self, name: str = "go") -> None:
        """Let a call end that waits (see `step`)."""
        (self.folder / name).touch()

    def close(self) -> None:
        """End it, whatever it came to."""
        agentbox("kill", self.run_id)
        self.process.wait()
        self._reader.join(10)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            try:
                stream.close()
            except BrokenPipeError:
                continue


def step(word: str, until: str = "", **given: Any) -> tuple[str, dict[str, Any]]:
    """A call of bash that notes `word`, and lasts until the file `until` is there."""
    wait = f"; while [ ! -e {until} ]; do sleep 0.05; done" if until else ""
    return "bash", {"command": f"echo {word} >> steps{wait}", **given}
