"""`agentbox estop`: the emergency stop on, off, and its state."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Sequence

from sandbox.cli.arguments import Parser, Value, output
from sandbox.cli.stopping import say, told, warn_of
from sandbox.control import emergency_file
from sandbox.errors import NOT_PROVEN, USAGE, AgentboxError, warn
from sandbox.manifest.home import Home
from sandbox.manifest.redact import redact_text

OFF = 3
"""Of --status, as `systemctl is-active` answers for a unit that is not."""

USAGE_LINE = "agentbox estop [-r TEXT] [--json] | --status [--json] | --lift"
ABOUT = """Write EMERGENCY_STOP, and end every run on every backend, side by side. While the file exists nothing
starts (exit 75), also after a reboot.

exit status: 0 proven empty, 1 survivors or could not prove, 2 usage, 4 proven empty but the file or a record
could not be written. --status: 0 on, 3 off, 1 could not tell. --lift: 0 off now; 75 refused: this is inside of
a box, or that cannot be told."""


def main(argv: Sequence[str]) -> int:
    parser = Parser("estop", USAGE_LINE, ABOUT)
    add = parser.add_argument
    why = "why, for the file and the records"
    add("-r", "--reason", action=Value, convert=redact_text, default="", metavar="TEXT", help=why)
    add("--json", action="store_true", help="print one object")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="is it on, since when, by whom?")
    what.add_argument("--lift", action="store_true", help="let runs start again; refused inside of a box")
    given = parser.parse_args(list(argv))
    if given.reason and (given.status or given.lift):
        raise AgentboxError("--reason goes with a stop alone", fix="leave it out", code=USAGE)
    home = Home.locate()
    if given.lift:
        return _lift(home, given)
    return _status(home, given) if given.status else _stop(home, given)


def _stop(home: Home, given: Namespace) -> int:
    from sandbox.control.emergency import emergency_stop

    by = f"uid {os.getuid()} pid {os.getpid()}"
    done = emergency_stop(home, given.reason or "emergency stop", by, make_file=True)
    if given.json:
        say(json.dumps({**emergency_file.look(home).as_dict(), **done.as_dict()}) + "\n")
    else:
        say("".join(map(told, done.stops)) + f"{_summary(done.proof)}; `agentbox estop --lift` lets runs start again\n")
    for line in done.unreachable:
        warn(f"could not be reached: {line}")
    if done.problem:
        warn(done.problem + ("" if done.stands else "; new runs are NOT refused: make the file by hand"))
    for stop in done.stops:
        warn_of(stop)
    return done.code


def _summary(proof: str) -> str:
    words = {"empty": "nothing is alive", "alive": "there are survivors"}
    return f"emergency stop: {words.get(proof, 'could not prove that nothing is alive')}"


def _lift(home: Home, given: Namespace) -> int:
    was_on = emergency_file.lift(home)
    if given.json:
        output(json.dumps({"on": False, "path": home.emergency_stop, "was_on": was_on}) + "\n")
    else:
        output(f"the emergency stop is {'lifted' if was_on else 'off already'}: runs may start\n")
    return 0


def _status(home: Home, given: Namespace) -> int:
    found = emergency_file.look(home)
    if given.json:
        output(json.dumps(found.as_dict()) + "\n")
    elif found.on:
        reason = f": {found.reason}" if found.reason else ""
        output(f"on since {found.since} by {found.by}{reason} ({found.path})\n")
    else:
        output("off\n" if found.on is False else f"could not tell: {found.why}\n")
    return {True: 0, False: OFF, None: NOT_PROVEN}[found.on]
