"""`agentbox spawn`: start one more task in a run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sandbox.cli.arguments import Parser
from sandbox.cli.launching import add_options, carry_out, parse, spec_of
from sandbox.cli.selection import existing_run, run_backend
from sandbox.launch.signals import Dispositions
from sandbox.manifest.home import Home
from sandbox.manifest.ids import check_id

USAGE_LINE = "agentbox spawn RUN [-d] [--task ID] [options] -- COMMAND..."
ABOUT = """Start a command as a further task of a run, from outside or from inside of it.

The backend is the run's own unless another is named, and so are its folders (run --own-dirs); limits hold for this
task alone. Exit status as of run; with -d the task's id is printed."""


def main(argv: Sequence[str], dispositions: Dispositions) -> int:
    parser = Parser("spawn", USAGE_LINE, ABOUT)
    parser.add_argument("run", metavar="RUN", help="a run's id, or a unique prefix of it")
    parser.add_argument("--task", metavar="ID", help="the task's id (default: made up)")
    add_options(parser)
    given = parse(parser, argv)
    home = Home.locate()
    run_id = existing_run(home, given.run)
    task_id = check_id(given.task, "task id") if given.task is not None else f"t-{os.urandom(4).hex()}"
    backend = run_backend(home, run_id)
    if given.backend == "auto" and not given.image:
        given.backend = backend
    spec = spec_of(given, run_id, task_id, new_run=False)
    return carry_out(spec, home, dispositions, task_id)
