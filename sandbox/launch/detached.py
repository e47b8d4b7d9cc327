"""`-d`: the launcher goes to the background, and says first whether the task has started.

A new session without a terminal, with no descriptor of the caller's kept open, so that a pipe or an ssh
connection of the caller's ends when the caller does.
"""

from __future__ import annotations

import contextlib
import os

from sandbox.errors import AgentboxError
from sandbox.kernel.spawn import Step, close_from, fork_reporting
from sandbox.launch.finish import refused_code
from sandbox.launch.run import launch
from sandbox.launch.signals import Dispositions
from sandbox.launch.spec import LaunchSpec
from sandbox.launch.start import Started
from sandbox.manifest.home import Home


def launch_detached(spec: LaunchSpec, home: Home, dispositions: Dispositions) -> list[str]:
    """Start the task with a launcher of its own and return once it runs: the limits that were given up, a line each.

    Raises AgentboxError if it does not run.
    """
    try:
        pid, reader = fork_reporting(lambda report: _background(spec, home, dispositions, report))
    except OSError as error:
        raise AgentboxError(f"cannot fork: {error.strerror}", fix="check pid limits (ulimit -u)") from None
    # One word, not up to the end: a child that stands for a container keeps the pipe open for as long as it runs.
    word = os.read(reader, 65536)
    os.close(reader)
    code, _, text = word.decode("utf-8", "replace").partition(" ")
    if code != "0":
        os.waitpid(pid, 0 if code else os.WNOHANG)
        raise _error(spec, code, text)
    return text.splitlines()


def _error(spec: LaunchSpec, code: str, text: str) -> AgentboxError:
    if not code.isdigit():
        # Killed at the wrong moment it may have let the command go; ours to end it is not: the id may be another's.
        what = f"the launcher could not say whether {spec.run_id} runs"
        return AgentboxError(what, fix=f"agentbox inspect {spec.run_id}, or agentbox kill {spec.run_id}")
    return AgentboxError(text, code=int(code))


def _background(spec: LaunchSpec, home: Home, dispositions: Dispositions, report: int) -> None:
    """Never returns. Moves the report pipe out of the way, then lets go of all that is the caller's."""
    answer = b"125 the launcher failed"
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.dup2(report, 3, inheritable=False)
        close_from(4)
        answer = b""
        steps: list[Step] = [("start a session", os.setsid)]
        launch(spec, home, dispositions, steps, _say_started)
    except AgentboxError as error:
        answer = f"{refused_code(error)} {error}".encode("utf-8", "replace")
    except BaseException as error:
        answer = f"125 {type(error).__name__}: {error}".encode("utf-8", "replace")
    finally:
        if answer:
            _say(3, answer)
        os._exit(0)


def _say_started(started: Started) -> None:
    _say(3, ("0 " + "\n".join(started.given_up)).encode("utf-8", "replace"))


def _say(fd: int, text: bytes) -> None:
    """What can't be said is no reason to leave a task that runs."""
    for act in (lambda: os.write(fd, text), lambda: os.close(fd)):
        with contextlib.suppress(OSError):
            act()
