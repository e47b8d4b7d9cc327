"""`agentbox kill --dry-run`: what a stop would end now, and whose work it would break: sockets that others use."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sandbox.cli.arguments import output
from sandbox.cli.stopping import Missed, exit_status, process_line, targets, warn_of
from sandbox.control.stop import Stop, look
from sandbox.errors import NOT_PROVEN, number_of, printable
from sandbox.kernel.procfs import Member, photograph
from sandbox.kernel.sockets import Listener, Seen, Untold, listening
from sandbox.manifest.home import Home
from sandbox.manifest.redact import described

SOCKETS_SECONDS = 5.0
PHOTOGRAPH_SECONDS = 1.0


def show_runs(given: argparse.Namespace) -> int:
    """List what a stop would end now; 1 where that could not be told. Nothing is changed, and nothing recorded."""
    missed = Missed()
    shown = [(stop, _sockets(stop)) for stop in map(look, targets(given, Home.locate(), missed))]
    # Before the warnings: whoever asked for a look that can't be shown is to see that, and its exit status.
    output(
        json.dumps([_as_json(*one) for one in shown]) + "\n" if given.json else "".join(_told(*one) for one in shown)
    )
    for stop, _ in shown:
        warn_of(stop)
    missed.warn()
    return exit_status([*(NOT_PROVEN for stop, _ in shown if stop.proof == "unknown"), *missed.codes()])


def _sockets(stop: Stop) -> tuple[Seen, Mapping[int, Member]]:
    """What the run's processes listen on, and each process that is named there."""
    known = {member.pid: member for member in stop.processes if member.cgroup}
    away = [member.pid for member in stop.processes if not member.cgroup]
    seen = listening(known, SOCKETS_SECONDS) if known else Seen()
    seen.untold += [Untold("on another host", away)] if away else []
    seen.untold += [Untold("its processes could not be listed")] if stop.unlisted else []
    users = {pid for one in seen.listeners for pid in one.users}
    return seen, {**known, **{one.pid: one for one in photograph(users, PHOTOGRAPH_SECONDS)}}


def _as_json(stop: Stop, sockets: tuple[Seen, Mapping[int, Member]]) -> dict[str, Any]:
    seen, members = sockets
    return {
        **stop.as_receipt(),
        "listening": [
            {
                "kind": one.kind,
                "address": one.address,
                "holders": [described(members[pid].as_dict()) for pid in one.holders],
                "used_by": [described(members[pid].as_dict()) for pid in one.users],
                "used_from": one.remote,
                "used_by_unseen": one.unseen,
            }
            for one in seen.listeners
        ],
        "listening_unknown": [vars(one) for one in seen.untold],
    }


def _told(stop: Stop, sockets: tuple[Seen, Mapping[int, Member]]) -> str:
    seen, members = sockets
    what = stop.run_id if stop.task_id is None else f"{stop.run_id} task {stop.task_id}"
    lines = [f"{what}: would end {number_of(len(stop.processes), 'process')}", *map(process_line, stop.processes)]
    lines += [printable(_listener(one, members)) for one in seen.listeners]
    lines += [printable(_untold(one)) for one in seen.untold]
    return "\n  ".join(lines) + "\n"


def _listener(one: Listener, members: Mapping[int, Member]) -> str:
    used = [*_named(one.users, members), *one.remote]
    parts = [f"used by {', '.join(used)}"] if used else []
    if one.unseen:
        ends = number_of(one.unseen, "connection")
        parts.append(f"could not tell who{' else' if used else ''} uses it: {ends} of what can't be looked into")
    held = f"listens on {one.kind} {one.address}: {', '.join(_named(one.holders, members))}"
    return "; ".join([held, *(parts or ["used by nobody outside"])])


def _named(pids: Iterable[int], members: Mapping[int, Member]) -> list[str]:
    return [f"pid {pid} ({process_line(members[pid]).split(' ', 2)[2]})" for pid in pids]


def _untold(one: Untold) -> str:
    shown = ", ".join(map(str, one.pids[:20])) + (" …" if len(one.pids) > 20 else "")
    whose = f"{'pid' if len(one.pids) == 1 else 'pids'} {shown} listen{'s' * (len(one.pids) == 1)}"
    return f"could not tell what {whose if one.pids else 'it listens'} on: {one.why}"
