"""`agentbox run`: start an agent in a box of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandbox.cli.arguments import Parser
from sandbox.cli.launching import add_options, carry_out, parse, spec_of
from sandbox.errors import USAGE, AgentboxError
from sandbox.launch.signals import Dispositions
from sandbox.launch.spec import MAIN
from sandbox.manifest.home import Home
from sandbox.manifest.ids import check_id, new_run_id

USAGE_LINE = "agentbox run [-d] [--run-id ID] [options] -- COMMAND..."
ABOUT = """Start a command as the main task of a new run. Everything that it starts belongs to the run.

exit status: the command's own, 128+N for signal N, 125 agentbox failed, 126 not executable, 127 not found,
124 timed out, 75 refused because of a stop order."""
OWN_DIRS = "TMPDIR, XDG_RUNTIME_DIR and GRADLE_USER_HOME in the run's own state, for all its tasks: shares no daemon"


def main(argv: Sequence[str], dispositions: Dispositions) -> int:
    parser = Parser("run", USAGE_LINE, ABOUT)
    parser.add_argument("--run-id", metavar="ID", help="the run's id (default: made from date and time)")
    parser.add_argument("--task", default=MAIN, metavar="ID", help="the main task's id (default: main)")
    parser.add_argument("--own-dirs", action="store_true", help=OWN_DIRS)
    add_options(parser)
    given = parse(parser, argv)
    if given.own_dirs and given.image:
        why = "--own-dirs is not for containers, whose folders are their own anyway"
        raise AgentboxError(why, fix="leave it or --image out", code=USAGE)
    home = Home.locate()
    run_id = check_id(given.run_id, "run id") if given.run_id is not None else new_run_id()
    spec = spec_of(given, run_id, check_id(given.task, "task id"), new_run=True)
    return carry_out(replace(spec, own_dirs=given.own_dirs), home, dispositions, run_id)
