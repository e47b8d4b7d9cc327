"""`agentbox abort`: end a run by the ladder: order, grace, SIGTERM, kill."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.cli import values
from sandbox.cli.arguments import Parser, Value
from sandbox.cli.stopping import EXIT_STATUS, add_options, stop_runs
from sandbox.control.ladder import GRACE, TERM, abort

ABOUT = f"""Order STOP and let the workers leave at their next boundary; SIGTERM what is left after the grace,
kill what is left after that. Each rung ends as soon as the run is empty.

{EXIT_STATUS}"""


def main(argv: Sequence[str]) -> int:
    parser = Parser("abort", "agentbox abort RUN... [--grace 30s] [--term 10s] [--reason TEXT] [--json] | --all", ABOUT)
    add_options(parser)
    grace, term = f"before SIGTERM (default: {GRACE:g}s)", f"then before the kill (default: {TERM:g}s)"
    parser.add_argument("--grace", action=Value, convert=values.duration, default=GRACE, metavar="TIME", help=grace)
    parser.add_argument("--term", action=Value, convert=values.duration, default=TERM, metavar="TIME", help=term)
    given = parser.parse_args(list(argv))
    patience = given.grace + given.term
    return stop_runs(given, lambda target, stop: abort(target, stop, given.grace, given.term), patience)
