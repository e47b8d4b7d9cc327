"""The Typer application: help for every verb, and the verbs whose start-up time does not count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from sandbox import __version__
from sandbox.cli import (
    abort,
    checkpoint,
    doctor,
    drill,
    estop,
    hooks,
    inspect,
    install_units,
    kill,
    logs,
    pause,
    prune,
    ps,
    reconcile,
    records,
    redirect,
    report,
    run,
    spawn,
    top,
    tree,
    wait,
    watch,
    worktrees,
)
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


BOUNDARY_HELP = {
    "gate": """usage: agentbox gate [NAME]

Pass a boundary: NAME is the call that is about to begin. Blocks while the run or the task is paused.
A change of the plan (redirect) is printed on stdout, once. Outside of a box it does nothing.

exit status: 0 go on; 2 stop, with the reason on stderr.
""",
    "tick": """usage: agentbox tick [NAME [TOKENS]]

Mark a call as finished: its name, and how many tokens it took. Outside of a box it does nothing.
""",
}


def boundary(verb: str) -> Callable[[list[str]], int]:
    """Only their help comes by this way: see cli.entry."""

    def told(argv: list[str]) -> int:
        sys.stdout.write(BOUNDARY_HELP[verb])
        return 0

    return told


_forward("run", "Start an agent in a new run.", lambda argv: run.main(argv, Dispositions.inherited()))
_forward("spawn", "Start one more task in a run.", lambda argv: spawn.main(argv, Dispositions.inherited()))
_forward("kill", "End runs at once, proven.", kill.main)
_forward("abort", "End runs by the ladder: order, grace, SIGTERM, kill.", abort.main)
_forward("estop", "Emergency stop: end all runs, and let none start.", estop.main)

_forward("gate", "Pass a boundary: exit 0 go on, 2 stop; holds while paused. For harnesses.", boundary("gate"))
_forward("tick", "Mark a finished call: its name and tokens. For harnesses.", boundary("tick"))

app.command("ps", short_help="List runs.")(ps.ps)
app.command("inspect", short_help="Tell all that is known of a run, as JSON.")(inspect.inspect)
app.command("pause", short_help="Hold a run at the next boundary of its workers.")(pause.pause)
app.command("resume", short_help="Let a paused run go on.")(pause.resume)
app.command("redirect", short_help="Change part of a fleet's plan by a table.")(redirect.redirect)
app.command("report", short_help="Tell where a run stopped, and what is not known of it.")(report.report)
app.command("top", short_help="Show the fleet live, with keys that act on it.")(top.top)
app.command("tree", short_help="Show the processes of a run, box by box.")(tree.tree)
app.command("logs", short_help="Print the output of a detached task.")(logs.logs)
app.command("wait", short_help="Wait for a run to end, and exit as it did.")(wait.wait)
app.command("manifest", short_help="Print the record of a run, or of all.")(records.manifest)
app.command("verify", short_help="Check a run's record for changes.")(records.verify)
app.command("checkpoint", short_help="Commit what this worktree of a task holds.")(checkpoint.checkpoint)
app.command("worktrees", short_help="List the worktrees of a run.")(worktrees.worktrees)
_forward("reconcile", "Find what is alive and should not be.", reconcile.main)
app.command("prune", short_help="Remove what ended runs left behind.")(prune.prune)
app.command("watch", short_help="Enforce an emergency stop and orders written by hand.")(watch.watch)
app.command("install-units", short_help="Write systemd units, or print crontab lines.")(install_units.install_units)
app.add_typer(hooks.app, name="hooks")
app.command("drill", short_help="Try the stop on a throwaway fleet, and print the score.")(drill.drill)
app.command("doctor", short_help="Try every backend, and say how to repair it.")(doctor.doctor)


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
