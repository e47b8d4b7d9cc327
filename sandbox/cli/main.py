"""The command `agentbox`: hot verbs go straight to their file, the others through Typer."""

from __future__ import annotations

import os
import sys

from sandbox.errors import AGENTBOX_FAILED, USAGE, AgentboxError
from sandbox.launch.signals import Dispositions
from sandbox.launch.terminal import reserve_stdio

LAUNCHING = ("run", "spawn")
STOPPING = ("kill", "abort")


def main() -> None:
    """Entry point. No traceback reaches a person; AGENTBOX_DEBUG=1 shows it to a developer."""
    dispositions = Dispositions.inherited()
    reserve_stdio()
    argv = sys.argv[1:]
    verb = argv[0] if argv else ""
    try:
        code = _dispatch(verb, argv, dispositions)
    except AgentboxError as error:
        code = _complain(verb, error)
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = _quiet_pipe()
    except Exception as error:
        if os.environ.get("AGENTBOX_DEBUG"):
            raise
        text = f"{type(error).__name__}: {error}"
        code = _complain(verb, AgentboxError(f"unexpected: {text}", fix="AGENTBOX_DEBUG=1 shows where"))
    sys.exit(code)


def _dispatch(verb: str, argv: list[str], dispositions: Dispositions) -> int:
    if verb in LAUNCHING:
        from sandbox.cli import run, spawn

        launching = run.main if verb == "run" else spawn.main
        return launching(argv[1:], dispositions)
    if verb in STOPPING:
        from sandbox.cli import abort, kill

        stopping = kill.main if verb == "kill" else abort.main
        return stopping(argv[1:])
    from sandbox.cli.app import main as app_main

    return app_main(argv)


def _complain(verb: str, error: AgentboxError) -> int:
    """One line on stderr; the exit status is the error's own, or the verb's for a failure of agentbox."""
    try:
        sys.stderr.write(f"agentbox: {error}\n")
    except (OSError, AttributeError):
        pass
    default = AGENTBOX_FAILED if verb in LAUNCHING else USAGE
    if verb in LAUNCHING and error.code in (None, USAGE):
        return AGENTBOX_FAILED
    return default if error.code is None else error.code


def _quiet_pipe() -> int:
    """The reader of our output is gone (`agentbox ps | head`): end as a program killed by SIGPIPE would."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


if __name__ == "__main__":
    main()
