"""Where a drill takes place: a throwaway repository with a bare remote, the person's commands, and leaving nothing.

The run itself is made in the person's own AGENTBOX_HOME, so that `ps` shows it and an emergency stop reaches it.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sandbox.boxes.base import Unavailable
from sandbox.control.status import backends_of, status
from sandbox.drill import abandoned, containers
from sandbox.drill.abandoned import TOKEN as TOKEN
from sandbox.errors import AgentboxError
from sandbox.kernel.identity import Identity
from sandbox.kernel.mounts import cgroup2_mount
from sandbox.kernel.spawn import capture, capture_all
from sandbox.manifest.home import Home
from sandbox.worktree.git import REPOSITORY_VARIABLES, git

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
GATE = os.path.join(TREE, "sandbox/harness/gate.sh")
AGENTBOX = [sys.executable, "-m", "sandbox.cli.main"]
COMMAND_SECONDS = 120.0
GONE_SECONDS = 3.0
FOLDERS = ("bin", "board", "seen", "calls", "hearts", "pipes", "src")


@dataclass
class Ground:
    """`folder`: all that the drill makes on disk but the run's record. `problems`: what could not be undone."""

    home: Home
    backend: str
    run_id: str = field(default_factory=lambda: f"drill-{secrets.token_hex(4)}")
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    folder: str = ""
    image: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def repository(self) -> str:
        return f"{self.folder}/src/repo"

    def tree(self, task_id: str) -> str:
        """The worktree of a task (worktree.repository.path_of)."""
        return f"{self.folder}/src/wt-{self.run_id}-{task_id}"

    def put(self) -> None:
        """Make it all. Raises AgentboxError."""
        try:
            folder = f"{abandoned.top()}/agentbox-{self.run_id}"
            if os.path.lexists(folder):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
            self.folder = folder  # before it is made: a signal may come between the two
            os.mkdir(folder, 0o700)
            abandoned.sign(folder, self.home, self.token)
            for name in FOLDERS:
                os.mkdir(f"{self.folder}/{name}")
            for name in ("coordinator.sh", "worker.sh", "heart.sh", "server.sh"):
                shutil.copy(f"{HERE}/{name}", f"{self.folder}/bin/{name}")
            shutil.copy(GATE, f"{self.folder}/bin/gate.sh")
            if self.backend != "docker":
                self._write("bin/checkpoint.sh", f'exec {shlex.join(AGENTBOX)} checkpoint "$@"\n')
            mount = cgroup2_mount()
            self._write("bin/outside", f"{mount.point if mount else ''}/cgroup.procs\n")
        except OSError as error:
            raise AgentboxError(f"{error.filename} can't be made: {error.strerror}", fix="see TMPDIR") from None
        self._repository()
        if self.backend == "docker":
            containers.require_engine()
            self.image = f"agentbox-{self.run_id}"
            containers.make_image(self.image)

    def _write(self, name: str, text: str) -> None:
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)

    def _repository(self) -> None:
        """A first commit, pushed; the remote logs each change of a branch (git-config(1), core.logAllRefUpdates)."""
        remote, repository = f"{self.folder}/remote.git", self.repository
        git("init", "-q", "--bare", "--template=", "-b", "main", remote, cwd=self.folder)
        git("init", "-q", "--template=", "-b", "main", repository, cwd=self.folder)
        own = {
            "user.name": "drill",
            "user.email": "drill@localhost",
            "commit.gpgSign": "false",
            "gc.auto": "0",
            "maintenance.auto": "false",
        }
        for name, value in own.items():
            git("config", name, value, cwd=repository)
        git("config", "core.logAllRefUpdates", "true", cwd=remote)
        git("remote", "add", "origin", remote, cwd=repository)
        git("commit", "-q", "--allow-empty", "-m", "the beginning", cwd=repository)
        git("push", "-q", "-u", "origin", "main", cwd=repository)

    # a person's commands, each a process of its own

    @property
    def environment(self) -> dict[bytes, bytes]:
        kept = {name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES}
        path = os.pathsep.join(filter(None, [TREE, os.environ.get("PYTHONPATH", "")]))
        more = {"AGENTBOX_HOME": self.home.path, "PYTHONPATH": path, TOKEN: self.token}
        return {os.fsencode(name): os.fsencode(value) for name, value in {**kept, **more}.items()}

    def box(self) -> list[str]:
        """The options of `run` and `spawn` that say where a task lives."""
        if not self.image:
            return ["--backend", self.backend]
        return ["--image", self.image, "--env", TOKEN, *containers.mounts(self.folder)]

    def agentbox(self, *args: str, codes: Sequence[int] = (0,)) -> str:
        """What `agentbox ARGS` prints. Raises AgentboxError, with its own words, for a status not among `codes`."""
        try:
            done = capture([*AGENTBOX, *args], self.environment, self.repository, COMMAND_SECONDS)
        except TimeoutError:
            raise AgentboxError(f"agentbox {args[0]} did not end within {COMMAND_SECONDS:g} s") from None
        return _output(args, done, codes)

    def agentbox_all(self, commands: Sequence[Sequence[str]]) -> None:
        """Several at a time. Raises AgentboxError if one fails."""
        at_once = 2 * (os.cpu_count() or 1)
        argvs = [[*AGENTBOX, *args] for args in commands]
        try:
            done = capture_all(argvs, self.environment, self.repository, COMMAND_SECONDS, at_once)
        except TimeoutError:
            raise AgentboxError(f"{len(argvs)} tasks did not start within {COMMAND_SECONDS:g} s") from None
        for args, one in zip(commands, done, strict=True):
            _output(args, one, (0,))

    # leaving nothing

    def marked(self) -> list[Identity]:
        """The live processes that carry the drill's token, but for this one."""
        return abandoned.marked(self.token)

    def end(self) -> bool:
        """End every process of the drill; True once the run is proven empty and none is left."""
        deadline = time.monotonic() + 3 * GONE_SECONDS
        while True:
            if os.path.lexists(self.home.run_dir(self.run_id).path) and status(self.home, self.run_id).live:
                self._kill()
            gone = self._end_marked()
            empty = status(self.home, self.run_id).proof == "empty"
            if (gone and empty) or time.monotonic() > deadline:
                return gone and empty

    def _kill(self) -> None:
        try:
            self.agentbox("kill", self.run_id, "--reason", "the drill is over", codes=(0, 1, 3, 4))
        except AgentboxError as error:
            self.problems.append(str(error))

    def _end_marked(self) -> bool:
        """Launchers go by themselves once their task is dead; whatever stays is killed."""
        deadline = time.monotonic() + GONE_SECONDS
        while left := self.marked():
            late = time.monotonic() - deadline
            if late > GONE_SECONDS:
                return False
            for one in left if late > 0 else ():
                one.signal(signal.SIGKILL)
            time.sleep(0.02)
        return True

    def remove(self, keep: bool) -> None:
        """Undo what `put` and the run have made; `keep` leaves folder, record and containers."""
        if not self.end():
            self.problems.append(f"run {self.run_id} is not proven empty: agentbox kill {self.run_id}")
            return
        self._remove_boxes()
        if keep:
            abandoned.keep(self.folder)
            return
        if self.image:
            self.problems += containers.remove(self.home.path, self.run_id, self.image)
        for path in (self.folder, self.home.run_dir(self.run_id).path):
            if path and os.path.lexists(path):
                shutil.rmtree(path, ignore_errors=True)
                self.problems += [f"{path} could not be removed whole"] if os.path.lexists(path) else []

    def _remove_boxes(self) -> None:
        """Empty cgroups of a launcher that had to be killed."""
        for one in backends_of(self.home, status(self.home, self.run_id).run):
            try:
                for box in one.parents(self.run_id):
                    one.destroy(box)
            except (Unavailable, OSError) as error:
                self.problems.append(f"{one.name}: {error}")


def _output(args: Sequence[str], done: tuple[int, bytes, bytes], codes: Sequence[int]) -> str:
    code, out, err = done
    if code not in codes:
        lines = err.decode("utf-8", "replace").strip().splitlines() or [f"exit status {code}"]
        said = lines[-1].removeprefix("agentbox: ")
        raise AgentboxError(f"agentbox {args[0]} failed: {said}", code=code if code == 75 else None)
    return out.decode("utf-8", "replace")


def parsed(text: str) -> object:
    """JSON that agentbox has printed. Raises AgentboxError."""
    try:
        return json.loads(text)
    except ValueError:
        raise AgentboxError(f"agentbox printed no JSON: {text[:80]!r}") from None
