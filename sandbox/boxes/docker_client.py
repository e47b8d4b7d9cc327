"""The process that stands for a container: the launcher's child, with the command's own stdio and exit status.

It makes the container and attaches before it reports ready, starts it once released, and then only pumps. So
the launcher supervises it like a command of its own: signals that it gets go on to the container, and it exits
with the container's code. docker-py is imported here and not in the launcher.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from sandbox.boxes.base import BoxSpec, Command, Unavailable
from sandbox.boxes.docker_engine import ACT_SECONDS, ASK_SECONDS, Container, Engine, Facts, NotThere, Rejected
from sandbox.boxes.docker_spec import Stdio, create_body
from sandbox.boxes.docker_stdio import Attached, Input, Output, attach, raw_terminal, window_size
from sandbox.errors import AGENTBOX_FAILED, AgentboxError
from sandbox.kernel.spawn import Child, ChildFailed, spawn

FORWARDED = frozenset(
    int(s)
    for s in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGTSTP,
        signal.SIGWINCH,
    )
)
LOST_SECONDS = 30.0
"""How long an engine may be silent, with the container's cgroup empty, before the exit status is given up."""
_ENDS = frozenset(
    int(s) for s in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGPIPE, signal.SIGALRM, signal.SIGTERM)
)
"""Signals whose default action ends a process without a core file (signal(7))."""


@dataclass(frozen=True)
class Plan:
    """What the client is to make. `cgroup`, `parent`: see create_body. `empty`: is the local cgroup empty?"""

    name: str
    spec: BoxSpec
    command: Command
    facts: Facts
    cgroup: str | None
    parent: str | None
    empty: Callable[[], bool | None]


class _Silent(AgentboxError):
    """The client ended and has not said why."""


class ClientChild(Child):
    """A client at its barrier. Errors come as AgentboxError, in the engine's words."""

    def __init__(self, child: Child, words: int) -> None:
        super().__init__(child.pid, child._barrier, child._report)
        self._words = words

    def wait_ready(self, seconds: float) -> None:
        try:
            super().wait_ready(seconds)
        except ChildFailed as error:
            reason = self._reason(0.5)
            raise (error if reason is None or isinstance(reason, _Silent) else reason) from None

    def release(self) -> None:
        """Let the client start the container; returns once it runs."""
        try:
            os.write(self._barrier, b"go")
            os.close(self._barrier)
            self._barrier = -1
        except OSError:
            raise self._reason(0.5) or ChildFailed("start the container", 0) from None
        error = self._reason(ACT_SECONDS + 10)
        if error is not None:
            self.abandon()
            raise error
        self._close()

    def _reason(self, seconds: float) -> AgentboxError | None:
        """What the client wrote before it closed its end; None if it wrote that all is well."""
        poll = select.poll()
        poll.register(self._words, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return AgentboxError("the docker client does not answer", code=AGENTBOX_FAILED)
        text = os.read(self._words, 1 << 16)
        if text == b"ok":
            return None
        if not text:
            return _Silent("the docker client ended before the container ran", code=AGENTBOX_FAILED)
        what, fix, code = json.loads(text)
        return AgentboxError(what, fix=fix, code=code)

    def _close(self) -> None:
        super()._close()
        if self._words >= 0:
            os.close(self._words)
        self._words = -1


def fork_client(plan: Plan) -> ClientChild:
    """Fork the client; it makes the container, attaches and waits. Raises OSError where it can't fork."""
    reader, writer = os.pipe()
    client = _Client(plan, writer)
    steps = [*plan.command.steps, ("make the container", client.prepare)]
    try:
        child = spawn([b"false"], {}, steps, ("start the container", client.run))
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return ClientChild(child, reader)


class _Client:
    """Lives in the child only."""

    def __init__(self, plan: Plan, words: int) -> None:
        self.plan = plan
        self.words = words

    # before the barrier

    def prepare(self) -> None:
        """Make the container and attach to it. Raises OSError after the reason was sent."""
        _close_inherited()
        try:
            self.engine = Engine(ASK_SECONDS)
            self.stdio = self._look_at_stdio()
            self.id = self._create()
            self.attached = attach(self.engine, self.id, stdin=self.stdio.stdin, logs=False)
        except AgentboxError as error:
            self._say(error)
            raise OSError(errno.ECANCELED, error.what) from None

    def _look_at_stdio(self) -> Stdio:
        options = self.plan.spec.container
        given = options.get("interactive"), options.get("tty")
        stdin = _is_open(0) if given[0] is None else bool(given[0])
        terminals = all(_is_open(fd) and os.isatty(fd) for fd in (0, 1, 2))
        tty = terminals if given[1] is None else bool(given[1])
        return Stdio(tty, stdin, window_size() if tty else None)

    def _create(self) -> str:
        plan = self.plan
        body = create_body(
            plan.spec,
            plan.command,
            plan.facts,
            self.stdio,
            cgroup=plan.cgroup,
            parent=plan.parent,
            socket=self.engine.socket,
        )
        act = lambda: self.engine.api.create_container_from_config(body, plan.name)  # noqa: E731
        try:
            return str(self.engine.bounded(ACT_SECONDS, act)["Id"])
        except Rejected as error:
            raise explain(error, plan.spec) from None

    def _say(self, error: AgentboxError) -> None:
        text = json.dumps([error.what, error.fix, error.code or AGENTBOX_FAILED])
        os.write(self.words, text.encode()[: 1 << 16])

    # after the barrier

    def run(self) -> NoReturn:
        """Start the container, pump, and exit as it did."""
        code = AGENTBOX_FAILED
        try:
            if self.plan.command.before_exec:
                self.plan.command.before_exec[1]()
            heard = self._listen()
            with raw_terminal(self.stdio.tty and self.stdio.stdin):
                if self._start():
                    threading.Thread(target=self._forward, args=(heard,), daemon=True).start()
                    code = self._pump()
        except AgentboxError as error:
            self._complain(str(error))
        except BaseException as error:
            self._complain(f"the docker client failed: {error or type(error).__name__}")
        finally:
            self._end(code)

    def _listen(self) -> set[int]:
        """Block what is to go on to the container; what was inherited as ignored stays ignored."""
        heard = {n for n in FORWARDED if signal.getsignal(n) != signal.SIG_IGN}
        signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        # A read of the terminal from the background gives EIO then, and does not stop the pump.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        return heard

    def _start(self) -> bool:
        try:
            self.engine.bounded(ACT_SECONDS, lambda: self.engine.api.start(self.id))
        except Rejected as error:
            self._say(explain(error, self.plan.spec))
            return False
        except Unavailable as error:
            self._say(error)
            return False
        if self.stdio.tty:
            self._resize()
        os.write(self.words, b"ok")
        os.close(self.words)
        return True

    def _pump(self) -> int:
        output = Output()
        if self.stdio.stdin:
            Input(self.attached).start()
        attached: Attached | None = self.attached
        while True:
            if attached is not None:
                attached.pump(output, tty=self.stdio.tty, ended=self.plan.empty, broken=self._broken)
                attached.close()
            found = self._outcome()
            if found is not None:
                output.finish()
                return found
            attached = self._again()

    def _again(self) -> Attached | None:
        """The stream ended and the container runs on: the engine was restarted, or the client detached."""
        with contextlib.suppress(AgentboxError):
            return attach(self.engine, self.id, stdin=False, logs=False)
        return None

    def _outcome(self) -> int | None:
        """The container's exit status, or None while it runs. Waits out an engine that is being restarted."""
        silent_since: float | None = None
        while True:
            try:
                state = self.engine.inspect(self.id)
            except NotThere:
                return 128 + int(signal.SIGKILL)
            except AgentboxError as error:
                silent_since = silent_since or time.monotonic()
                if self.plan.empty() is not False and time.monotonic() - silent_since > LOST_SECONDS:
                    self._complain(f"the exit status is lost: {error}")
                    return AGENTBOX_FAILED
                time.sleep(0.2)
                continue
            if state.down:
                return _code(state)
            silent_since = None
            if state.running and not state.restarting and self._stays(state):
                return None
            time.sleep(0.05)

    def _stays(self, state: Container) -> bool:
        """Wait a moment for the end that follows the end of the stream; True if the container just runs on."""
        try:
            self.engine.bounded(1.0, lambda: self.engine.api.wait(state.id, timeout=1.0))
        except AgentboxError:
            return True
        return False

    # signals

    def _forward(self, heard: set[int]) -> None:
        """A thread: each signal that the client gets goes on to the container's own main process."""
        engine = None
        while True:
            number = signal.sigwait(heard)
            if number == signal.SIGWINCH and not self.stdio.tty:
                continue
            with contextlib.suppress(AgentboxError):
                engine = engine or Engine(ASK_SECONDS)
                if number == signal.SIGWINCH:
                    self._resize(engine)
                elif number == signal.SIGTSTP:
                    self._hold(engine)
                else:
                    self._send(engine, number)

    def _send(self, engine: Engine, number: int) -> None:
        engine.bounded(ASK_SECONDS, lambda: engine.api.kill(self.id, signal=number))

    def _hold(self, engine: Engine) -> None:
        """Ctrl+Z without a terminal of its own: the container is paused while the client is stopped."""
        with contextlib.suppress(AgentboxError):
            engine.bounded(ASK_SECONDS, lambda: engine.api.pause(self.id))
        os.kill(os.getpid(), signal.SIGSTOP)
        engine.bounded(ASK_SECONDS, lambda: engine.api.unpause(self.id))

    def _resize(self, engine: Engine | None = None) -> None:
        asked = engine or self.engine
        size = window_size()
        if size:
            with contextlib.suppress(AgentboxError):
                asked.bounded(ASK_SECONDS, lambda: asked.api.resize(self.id, *size))

    def _broken(self) -> None:
        """Nobody reads the output any more: the container's main process is told so, as a pipe would."""
        with contextlib.suppress(AgentboxError):
            engine = Engine(ASK_SECONDS)
            self._send(engine, signal.SIGPIPE)

    def _complain(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"agentbox: {text}\n".encode("utf-8", "replace"))

    def _end(self, code: int) -> NoReturn:
        """Exit with `code`; by signal N for 128+N, as the command itself would have ended."""
        number = code - 128
        if number in _ENDS:
            with contextlib.suppress(OSError, ValueError):
                if number != signal.SIGKILL:
                    signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os._exit(code)


def _close_inherited() -> None:
    """Close the launcher's files, among them its lock on the manifest: no exec does it here. Pipes stay."""
    for fd in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if fd > 2 and not stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.close(fd)


def _is_open(fd: int) -> bool:
    """Was it open for the command? The launcher puts a close-on-exec /dev/null in the place of a closed one."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _code(state: Container) -> int:
    """Never 0 for a container that was killed or has failed to start."""
    if state.exit_code == 0 and (state.oom_killed or state.never_started or state.error):
        return 128 + int(signal.SIGKILL) if state.oom_killed else AGENTBOX_FAILED
    return state.exit_code if 0 <= state.exit_code <= 255 else AGENTBOX_FAILED


def explain(error: Rejected, spec: BoxSpec) -> AgentboxError:
    """The engine's refusal of a create or start, with the way out where its words tell which option it was."""
    said = " ".join(error.said.split())
    image = spec.container.get("image")
    hints = (
        ("container-init", "install catatonit, the init that Podman takes"),
        ("No such image", f"docker pull {image}, or build it first"),
        ("bind source path does not exist", "the path must exist where the engine runs; see --mount"),
        ("invalid mount", "see --mount"),
        ("network", "docker network ls shows the networks; none, bridge and host are always there"),
        ("capabilit", "see capabilities(7) for the names that --cap takes"),
        ("memory", "docker's least is 6 MiB"),
        ("CPUs", "see --cpus and nproc"),
        ("already in use", f"see `agentbox inspect {spec.run_id}`"),
        ("user", "give --user as UID or UID:GID"),
        ("working dir", "see --workdir"),
    )
    fix = next((fix for words, fix in hints if words.lower() in said.lower()), "see the engine's log")
    return AgentboxError(f"the container could not be made or started: {said}", fix=fix, code=AGENTBOX_FAILED)
