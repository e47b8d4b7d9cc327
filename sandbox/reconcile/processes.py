"""Findings about single processes: ghosts, duplicates and escapees. Rules only, no look at anything."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sandbox.kernel.procfs import wall_start
from sandbox.manifest.redact import redact
from sandbox.reconcile.findings import Finding, Remedy, Severity, finding
from sandbox.reconcile.servers import Server
from sandbox.reconcile.state import Verdict
from sandbox.reconcile.strays import Stray
from sandbox.reconcile.survey import Survey

GHOST_AGE = 2.0
"""Seconds that a server in a live run must have lived: one that is fed by a pipe has its end of file at once."""
STRONG = ("recorded", "descends from", "environment")
GONE = Verdict("gone")


def ghosts_and_escapees(seen: Survey, verdicts: Mapping[str, Verdict]) -> Iterator[Finding]:
    """`verdicts`: of each run that is known; a run that is not is gone."""
    ghosts: list[Server] = []
    for server in seen.servers:
        verdict = verdicts.get(server.run_id, GONE)
        if why := _ghost(server, verdict):
            ghosts.append(server)
            yield _ghost_finding(seen, server, verdict, why)
    haunted = {(member.pid, member.start_ticks) for server in ghosts for member in server.members}
    yield from _duplicates(seen, [server for server in seen.servers if server not in ghosts], verdicts)
    for stray in seen.strays:
        if (stray.member.pid, stray.member.start_ticks) not in haunted:
            yield _escapee(stray, verdicts.get(stray.run_id, GONE))


def _ghost(server: Server, verdict: Verdict) -> str:
    """Why it is a ghost, or "". In a live run only one that nobody can talk to any more."""
    unheard = server.writer is False and (server.main.age or 0.0) >= GHOST_AGE
    if verdict.live:
        unheard = unheard and verdict.state not in ("starting", "stopping")
        return "its client is gone: nobody can write to its stdin any more" if unheard else ""
    if server.inside and verdict.kind == "leftovers" and verdict.remedy is None:
        return "its run has ended, and nobody can write to its stdin any more" if server.writer is False else ""
    return f"it outlived its run, which is {verdict.state}"


def _ghost_finding(seen: Survey, server: Server, verdict: Verdict, why: str) -> Finding:
    main = server.main
    remedy: Remedy | None = None
    if server.inside and verdict.remedy is not None and not verdict.live:
        remedy = verdict.remedy
    elif server.inside or _proven(seen, server):
        remedy = Remedy("processes", server.identities)
    if not server.inside and verdict.live:
        remedy = None
    pids = " ".join(str(member.pid) for member in server.members)
    command = f"agentbox kill {server.run_id}" if remedy and remedy.how == "stop" else f"kill -KILL {pids}"
    return finding(
        "ghost",
        server.run_id,
        server.task_id,
        f"MCP server {server.name} (pid {server.pid}): {why}",
        since=wall_start(main.start_ticks) if main.start_ticks is not None else None,
        evidence={**server.evidence(), "inside": server.inside, "told_by": _told_by(seen, server)},
        command=command,
        key=(server.pid, main.start_ticks),
        remedy=remedy,
        kept=f"its run is not over ({verdict.state})" if verdict.live and _proven(seen, server) else "",
    )


def _stray_of(seen: Survey, server: Server) -> Stray | None:
    pids = {member.pid for member in server.members}
    for stray in seen.strays:
        if stray.member.pid in pids or pids & {member.pid for member in stray.below}:
            return stray
    return None


def _proven(seen: Survey, server: Server) -> bool:
    stray = _stray_of(seen, server)
    return stray is not None and stray.proven


def _told_by(seen: Survey, server: Server) -> dict[str, str]:
    if server.inside:
        return {"membership": "it lives in a box of the run"}
    stray = _stray_of(seen, server)
    return stray.evidence if stray else {}


def _duplicates(seen: Survey, servers: list[Server], verdicts: Mapping[str, Verdict]) -> Iterator[Finding]:
    groups: dict[tuple[Any, ...], list[Server]] = {}
    for server in servers:
        if server.inside and server.command and verdicts.get(server.run_id, GONE).live:
            groups.setdefault((server.run_id, server.task_id, server.command), []).append(server)
    for (run_id, task_id, command), same in groups.items():
        if len(same) > 1:
            yield finding(
                "duplicate_mcp",
                run_id,
                task_id,
                f"{len(same)} servers {same[0].name} run in one task of a live run",
                evidence={"argv": redact(list(command)), "servers": [server.evidence() for server in same]},
                command="kill -TERM " + " ".join(str(server.pid) for server in same[:-1]),
                key=tuple(sorted((server.pid, server.main.start_ticks) for server in same)),
            )


def _escapee(stray: Stray, verdict: Verdict) -> Finding:
    pids = [stray.member.pid, *(member.pid for member in stray.below)]
    what = stray.what or f"pid {stray.member.pid} ({_shown(stray)}) lives outside of the run's boxes"
    proof = f"{'proven' if stray.proven else 'not proven'}: {_why_ours(stray)}"
    severity: Severity = "security" if any(name in stray.evidence for name in STRONG) else "info"
    unwanted = stray.proven and not verdict.live and stray.member.pid
    return finding(
        "escapee",
        stray.run_id,
        stray.task_id,
        f"{what}; {proof}",
        since=stray.since,
        evidence={**stray.as_evidence(), "proven": stray.proven, "run_state": verdict.state},
        command=stray.command or "kill -KILL " + " ".join(map(str, pids)),
        severity=severity,
        key=stray.key,
        remedy=Remedy("processes", stray.identities) if unwanted else None,
        kept=f"its run is not over ({verdict.state})" if stray.proven else "",
    )


def _why_ours(stray: Stray) -> str:
    """The evidence that counts most, in a few words."""
    names = ("recorded", "descends from") if stray.proven else ("environment", "door", *stray.evidence)
    name = next((one for one in names if one in stray.evidence), "")
    return "its environment names the run" if name == "environment" else stray.evidence.get(name, "by no evidence")


def _shown(stray: Stray) -> str:
    words = redact(stray.member.argv or [f"[{stray.member.comm}]"])
    text = shlex.join(words)
    return text if len(text) <= 80 else f"{text[:79]}…"
