"""The Typer application: help for every verb, and the verbs whose start-up time does not count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from sandbox import __version__
from sandbox.cli import abort, doctor, inspect, kill, logs, ps, records, run, spawn, tree, wait
from sandbox.errors import USAGE, AgentboxError, ReaderGone
from sandbox.launch.signals import Dispositions

app = typer.Typer(
    name="agentbox",
    help="Start AI agents in boxes that one command stops whole.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _forward(name: str, about: str, act: Callable[[list[str]], int]) -> None:
    """A verb that parses its own arguments (cli.arguments), listed here for the help."""

    def command(context: typer.Context) -> None:
        raise typer.Exit(act(list(context.args)))

    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, help=about, context_settings=settings)(command)


_forward("run", "Start an agent in a new run.", lambda argv: run.main(argv, Dispositions.inherited()))
_forward("spawn", "Start one more task in a run.", lambda argv: spawn.main(argv, Dispositions.inherited()))
_forward("kill", "End runs at once, proven.", kill.main)
_forward("abort", "End runs by the ladder: order, grace, SIGTERM, kill.", abort.main)

app.command("ps", help="List runs.")(ps.ps)
app.command("inspect", help="Tell all that is known of a run, as JSON.")(inspect.inspect)
app.command("tree", help="Show the processes of a run, box by box.")(tree.tree)
app.command("logs", help="Print the output of a detached task.")(logs.logs)
app.command("wait", help="Wait for a run to end, and exit as it did.")(wait.wait)
app.command("manifest", help="Print the record of a run, or of all.")(records.manifest)
app.command("verify", help="Check a run's record for changes.")(records.verify)
app.command("doctor", help="Try every backend, and say how to repair what does not work.")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"agentbox {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Start AI agents in boxes that one command stops whole."""


def main(argv: list[str]) -> int:
    """Run a verb. Typer's own errors become one line of ours."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=argv, prog_name="agentbox", standalone_mode=False)
    except (AgentboxError, ReaderGone):
        raise
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.stdout.write(f"{message()}\n")
            return USAGE
        verb = f" {argv[0]}" if argv[:1] and argv[0] in getattr(command, "commands", {}) else ""
        raise AgentboxError(message().rstrip("."), fix=f"see `agentbox{verb} --help`", code=USAGE) from None
    return code if isinstance(code, int) else 0
