"""`agentbox kill`: end a run, all of it, now, and prove it."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.cli.arguments import Parser
from sandbox.cli.stopping import EXIT_STATUS, add_options, stop_runs
from sandbox.control.stop import kill

ABOUT = f"""End every process of a run: order STOP, freeze, photograph, kill, prove empty, record.

{EXIT_STATUS}"""

DRY_RUN = "list what it would end, which sockets that listens on and who outside uses them; end nothing"


def main(argv: Sequence[str]) -> int:
    parser = Parser("kill", "agentbox kill RUN... [--task ID] [--reason TEXT] [--json] | --all", ABOUT)
    add_options(parser)
    parser.add_argument("--dry-run", action="store_true", help=DRY_RUN)
    given = parser.parse_args(list(argv))
    if given.dry_run:
        from sandbox.cli.dry_run import show_runs

        return show_runs(given)
    return stop_runs(given, kill)
