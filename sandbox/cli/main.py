"""The command `agentbox`: hot verbs go straight to their file, the others through Typer."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from sandbox.errors import (
    AGENTBOX_FAILED,
    NOT_EXECUTABLE,
    NOT_FOUND,
    NOT_PROVEN,
    REFUSED,
    USAGE,
    AgentboxError,
    ReaderGone,
)
from sandbox.launch.signals import Dispositions
from sandbox.launch.terminal import reserve_stdio

LAUNCHING = ("run", "spawn")
STOPPING = ("kill", "abort", "estop")
BOUNDARY = ("gate", "tick")
OF_THE_COMMAND = (*LAUNCHING, "wait")
"""Verbs that exit as a command did: what goes wrong with agentbox itself must not look like that."""


def main() -> None:
    """Entry point. No traceback reaches a person; AGENTBOX_DEBUG=1 shows it to a developer."""
    dispositions = Dispositions.inherited()
    # While it is ignored, the status of every helper is lost (waitpid(2)).
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    reserve_stdio()
    _reopen_streams()
    if not os.environ.get("AGENTBOX_DEBUG"):
        # What a thread without memory or a full disk at a file's end would print. To call a built-in takes no memory.
        sys.unraisablehook = callable
    argv = sys.argv[1:]
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    verb = argv[0] if argv else ""
    try:
        code = _dispatch(verb, argv, dispositions)
        sys.stdout.flush()
    except AgentboxError as error:
        code = _complain(verb, error)
    except SystemExit as done:  # argparse's --help
        code = done.code if isinstance(done.code, int) else 0
    except KeyboardInterrupt:
        code = 130
    except ReaderGone:
        code = 128 + 13  # as if killed by SIGPIPE
    except Exception as error:
        if os.environ.get("AGENTBOX_DEBUG"):
            raise
        text = f"{type(error).__name__}: {error}"
        code = _complain(verb, AgentboxError(f"unexpected: {text}", fix="AGENTBOX_DEBUG=1 shows where"))
    _let_go()
    if sys.flags.inspect:  # PYTHONINSPECT: the interpreter would show the exit as a traceback, and exit otherwise
        os._exit(code)
    sys.exit(code)


def _reopen_streams() -> None:
    """A stream that was closed at the start is None; its descriptor is /dev/null by now."""
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _dispatch(verb: str, argv: list[str], dispositions: Dispositions) -> int:
    if verb in LAUNCHING:
        return int(importlib.import_module(f"sandbox.cli.{verb}").main(argv[1:], dispositions))
    if verb in (*STOPPING, "reconcile"):
        return int(importlib.import_module(f"sandbox.cli.{verb}").main(argv[1:]))
    if verb in BOUNDARY and not {"-h", "--help"} & set(argv):
        from sandbox.harness import gate

        return (gate.tick if verb == "tick" else gate.gate)(argv[1:], dict(os.environ))
    from sandbox.cli.app import main as app_main

    return app_main(argv)


def _complain(verb: str, error: AgentboxError) -> int:
    """One line on stderr; the exit status is the error's own, or the verb's for a failure of agentbox."""
    try:
        sys.stderr.write(f"agentbox: {error}\n")
        sys.stderr.flush()
    except OSError:
        pass
    if verb in OF_THE_COMMAND:
        return error.code if error.code in (REFUSED, NOT_EXECUTABLE, NOT_FOUND) else AGENTBOX_FAILED
    default = NOT_PROVEN if verb in STOPPING else USAGE
    return default if error.code is None else error.code


def _let_go() -> None:
    """What could not be written is dropped: the interpreter would complain of it in lines of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


if __name__ == "__main__":
    main()
