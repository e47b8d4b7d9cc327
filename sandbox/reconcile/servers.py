"""The observer of MCP servers: which processes of a run are one, and whether anybody still talks to it.

A wrapper and the server that it starts share their standard input, and count as one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandbox.kernel.identity import Identity, boot_id
from sandbox.kernel.procfs import Member, Stat, all_pids, look, read_stat
from sandbox.kernel.scan import cmdline, folder_of, raw_environ, variables
from sandbox.kernel.stdin import has_writer, holders, stdin_of
from sandbox.kernel.usage import cpu_of, memory_of
from sandbox.manifest.redact import redact, secret_name
from sandbox.reconcile.mcp import Recognised, program, recognise, words
from sandbox.reconcile.mcp_config import Configurations, Configured

WRITER_SCAN_SECONDS = 0.5
_QUICK = rb"mcp|modelcontextprotocol"


@dataclass
class Server:
    """One MCP server with its wrappers. `pid`: the process that serves; `members`: it and its wrappers.

    `inside`: does it live in a box of its run? `writer`: can anybody still write to its stdin; None where stdin is
    no pipe or socket, or it could not be told. `age` and `cpu` in seconds, `memory` in bytes, None where unknown.
    `secrets`: the names of secret-looking variables. `command`: what makes two of them duplicates.
    """

    run_id: str
    task_id: str | None
    inside: bool
    recognised: Recognised
    pid: int
    members: list[Member] = field(default_factory=list)
    writer: bool | None = None
    memory: int | None = None
    cpu: float | None = None
    secrets: list[str] = field(default_factory=list)
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.recognised.name

    @property
    def main(self) -> Member:
        return next(member for member in self.members if member.pid == self.pid)

    @property
    def identities(self) -> tuple[Identity, ...]:
        return tuple(Identity(boot_id(), m.pid, m.start_ticks) for m in self.members if m.start_ticks is not None)

    def evidence(self) -> dict[str, Any]:
        """For a finding."""
        main = self.main
        stdin = {True: "has a writer", False: "has no writer left", None: "not a pipe or socket, or could not tell"}
        return {
            "server": self.name,
            "recognised_by": self.recognised.by,
            "pid": self.pid,
            "wrappers": [member.pid for member in self.members if member.pid != self.pid],
            "argv": redact(main.argv or []),
            "cwd": main.cwd,
            "age": main.age,
            "memory": self.memory,
            "cpu": self.cpu,
            "cpu_share": round(self.cpu / main.age, 3) if self.cpu is not None and main.age else None,
            "stdin": stdin[self.writer],
            "secret_variables": self.secrets,
        }


@dataclass(frozen=True)
class Place:
    """Where to look: `pids` of one task's box (or strays of a run), and where the run was started."""

    run_id: str
    task_id: str | None
    inside: bool
    folder: str | None
    pids: Sequence[int]


def find_servers(places: Iterable[Place], configurations: Configurations) -> list[Server]:
    """The servers among the processes of `places`. May hang on a process's memory: run it bounded."""
    found = []
    deadline = time.monotonic() + WRITER_SCAN_SECONDS
    quick: dict[str | None, re.Pattern[bytes]] = {}
    for place in places:
        configured = configurations.for_folder(place.folder)
        if place.folder not in quick:
            quick[place.folder] = _telling(configured)
        hits = _recognised(place.pids, configured, quick[place.folder])
        found += [_server(place, group, hits, deadline) for group in _grouped(hits, place.pids)] if hits else []
    return found


def _telling(configured: Iterable[Configured]) -> re.Pattern[bytes]:
    """What a command line must contain to be worth taking apart."""
    names = {os.path.basename(program(one.argv)) for one in configured}
    parts = [re.escape(os.fsencode(re.sub(r"(?<=.)@[\w.]*$", "", name))) for name in names if name]
    return re.compile(b"|".join([_QUICK, *sorted(parts)]), re.IGNORECASE)


def _recognised(pids: Sequence[int], configured: list[Configured], quick: re.Pattern[bytes]) -> dict[int, Recognised]:
    hits = {}
    for pid in pids:
        raw = cmdline(pid)
        if raw and quick.search(raw) and (one := recognise(words(raw), folder_of(pid), configured)):
            hits[pid] = one
    return hits


def _grouped(hits: dict[int, Recognised], pids: Sequence[int]) -> list[dict[int, Stat]]:
    """The hits with what belongs to them: ancestors and descendants on the same standard input."""
    stats = {pid: stat for pid in pids if (stat := read_stat(pid)) and stat.state not in "ZX"}
    inputs = {pid: stdin_of(pid) for pid in stats}
    groups: dict[int, dict[int, Stat]] = {}
    for pid in (one for one in hits if one in stats):
        top = pid
        while (above := stats[top].ppid) in hits and above in stats and _same_input(top, above, inputs):
            top = above
        groups.setdefault(top, {top: stats[top]})[pid] = stats[pid]
    for top, group in groups.items():
        _add_descendants(group, top, stats, inputs)
    return list(groups.values())


def _same_input(pid: int, above: int, inputs: dict[int, tuple[str, int | None]]) -> bool:
    """A server that starts others talks to them over pipes of its own; a wrapper hands its input on."""
    return inputs[pid][1] is None or inputs[pid] == inputs[above]


def _add_descendants(
    group: dict[int, Stat], top: int, stats: dict[int, Stat], inputs: dict[int, tuple[str, int | None]]
) -> None:
    grown = True
    while grown:
        grown = False
        for pid, stat in stats.items():
            if pid not in group and stat.ppid in group and inputs[pid][1] and inputs[pid] == inputs[top]:
                group[pid] = stat
                grown = True


def _depth(pid: int, stats: dict[int, Stat]) -> int:
    depth = 0
    while pid in stats and depth < 100:
        pid, depth = stats[pid].ppid, depth + 1
    return depth


def _server(place: Place, group: dict[int, Stat], hits: dict[int, Recognised], deadline: float) -> Server:
    deepest = max(group, key=lambda pid: (_depth(pid, group), pid))
    # A name out of a configuration is worth more than one out of a command line, whoever of the group bears it.
    named = [hits[pid] for pid in group if pid in hits]
    recognised = next((one for one in named if one.harness), named[-1])
    members = [look(pid) for pid in group]
    server = Server(place.run_id, place.task_id, place.inside, recognised, deepest, members)
    server.writer = _client_left(group, deepest, deadline)
    started = group[deepest].start_ticks
    server.memory, server.cpu = memory_of(deepest, started), cpu_of(deepest, started)
    server.secrets = secret_variables(deepest)
    server.command = tuple(server.main.argv or ())
    return server


def _client_left(group: dict[int, Stat], pid: int, deadline: float) -> bool | None:
    """Can anybody but the server itself still write to it? A write end that it inherited does not count."""
    answer = has_writer(pid)
    kind, inode = stdin_of(pid)
    if answer is not True or kind != "pipe" or inode is None:
        return answer
    clients = {stat.ppid for stat in group.values()} - set(group)
    if holders(inode, sorted(clients)) != []:
        return True
    if not holders(inode, list(group)):
        return True
    for other in all_pids():
        if time.monotonic() > deadline:
            return None
        if other not in group and (held := holders(inode, [other])) != []:
            return None if held is None else True
    return False


def secret_variables(pid: int) -> list[str]:
    """The names of variables of a process that look like secrets; never a value."""
    return sorted(name for name in variables(raw_environ(pid) or b"") if secret_name(name))
