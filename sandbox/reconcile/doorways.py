"""The observer of servers that start things on request: what came out of them while a run was alive.

Nothing marks what a server outside starts for a run, so the evidence is weaker here, and never enough to end
anything. What is looked at, for runs that live or ended within a day:

| door          | evidence |
| ------------- | -------- |
| at            | a queued job whose environment has the run's mark (at(1) saves the caller's environment) |
| tmux, screen  | a window's process, started while the run was alive, in the run's working directory |
| systemd-run   | a transient service or timer made while the run was alive (systemd.unit(5): /run/systemd/transient) |
| cron          | a crontab changed while the run was alive, and the jobs of it that run |
| docker run    | a running container without a label of ours that was made while the run was alive |
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from sandbox.kernel.files import read_bytes
from sandbox.kernel.mounts import cgroup_of
from sandbox.kernel.procfs import Member, Stat, started_at
from sandbox.kernel.scan import Table, cmdline, folder_of
from sandbox.manifest.home import Home
from sandbox.reconcile.containers import Stranger
from sandbox.reconcile.records import Recorded, read_run
from sandbox.reconcile.strays import Finder, Stray

REMEMBERED = 86400.0
"""Seconds after its end for which a run is still held to account for what came out of a door."""
CLOCK = 0.1
"""Seconds by which two readings of one moment may differ: files tell coarser times than records."""
DEEPENED = 200
"""At most so many runs that ended lately are read whole for it."""
TEXT_BYTES = 1 << 18

AT_SPOOLS = ("/var/spool/cron/atjobs", "/var/spool/at")
CRONTABS = ("/var/spool/cron/crontabs", "/var/spool/cron")
SERVERS = {"tmux: server": "tmux", "screen": "screen", "SCREEN": "screen", "atd": "at"}
CRON = ("cron", "crond")
_AT_JOB = re.compile(r"[a-zA-Z]([0-9a-f]{5})[0-9a-f]{8}")  # one that runs already begins with ="
_NOT_RUN_BY_HAND = re.compile(r"agentbox-|app-|dbus-|session-|user@|user-|init\.|machine-")
_SHARED = frozenset({"/", "/tmp", "/var/tmp", "/root", "/home", "/usr", "/var"})


@dataclass(frozen=True)
class Life:
    """When a run lived (seconds since the epoch), where it was started; `contained`: in a container."""

    run_id: str
    begin: float
    end: float
    folder: str | None
    contained: bool = False

    def covers(self, when: float) -> bool:
        return self.begin - CLOCK <= when <= self.end + CLOCK


class Doorways:
    """Called by the observer of processes with its table. `runs`: all recorded runs."""

    def __init__(
        self, home: Home, runs: Mapping[str, Recorded], only: str | None, strangers: Iterable[Stranger] = ()
    ) -> None:
        self.home = home
        self.strangers = strangers
        self.runs = runs
        self.only = only
        self._lives: list[Life] | None = None

    def __call__(self, table: Table, finder: Finder) -> Iterable[Stray]:
        found = [*self._at_jobs(), *self._windows(table, finder), *self._crontabs(table, finder)]
        return [*found, *self._units(table, finder), *self._containers()]

    def lives(self) -> list[Life]:
        """Of the runs to be looked at; the youngest first, so that a thing is put down to the latest."""
        if self._lives is None:
            found = (life(run) for run in self._remembered())
            self._lives = sorted((one for one in found if one), key=lambda one: -one.begin)
        return self._lives

    def _remembered(self) -> Iterator[Recorded]:
        late = []
        for run_id, run in self.runs.items():
            if self.only not in (None, run_id):
                continue
            if run.whole:
                yield run
            elif (end := moment((run.run.ended or {}).get("ts"))) and end > time.time() - REMEMBERED:
                late.append((end, run_id))
        for _, run_id in sorted(late, reverse=True)[:DEEPENED]:
            yield read_run(self.home, run_id, whole=True)

    # the doors

    def _at_jobs(self) -> Iterator[Stray]:
        for spool in AT_SPOOLS:
            for name, path in _files(spool):
                job = _AT_JOB.fullmatch(name)
                text = _text(path).replace("\\", "").replace("'", "").replace('"', "") if job else ""
                run_id = _marked_run(text, self.home.path)
                if job and run_id and self.only in (None, run_id):
                    number = int(job[1], 16)
                    told = {"environment": f"at job {number} has the run's mark", "door": "at"}
                    yield _queued(run_id, told, f"at job {number} is queued", f"atrm {number}", _mtime(path))

    def _windows(self, table: Table, finder: Finder) -> Iterator[Stray]:
        for pid, stat in table.stats.items():
            server = table.stats.get(stat.ppid)
            door = SERVERS.get(server.comm, "") if server else ""
            if not door or pid in finder.own:
                continue
            folder = folder_of(pid)
            for one in self.lives():
                if one.covers(started_at(stat.start_ticks)) and _within(folder, one.folder):
                    told = {
                        "door": f"started by {door} (pid {stat.ppid}) while the run was alive",
                        "cwd": f"{folder} is in the run's working directory",
                    }
                    if stray := finder.stray(pid, one.run_id, None, told, proven=False):
                        yield stray
                    break

    def _crontabs(self, table: Table, finder: Finder) -> Iterator[Stray]:
        for folder in CRONTABS:
            for name, path in _files(folder):
                changed = _mtime(path)
                one = next((one for one in self.lives() if one.covers(changed)), None) if changed else None
                if one is None:
                    continue
                told = {"door": f"the crontab of {name} was changed while the run was alive"}
                yield _queued(one.run_id, told, f"crontab of {name} was changed", f"crontab -u {name} -e", changed)
                yield from self._cron_jobs(table, finder, one, told, _text(path))

    def _cron_jobs(
        self, table: Table, finder: Finder, one: Life, told: dict[str, str], crontab: str
    ) -> Iterator[Stray]:
        for pid, stat in table.stats.items():
            server = table.stats.get(stat.ppid)
            # cron(8) forks a copy of itself for each job, whose child is the shell.
            if server is None or server.comm.lower() not in CRON or stat.comm.lower() in CRON:
                continue
            words = cmdline(pid).rstrip(b"\0").split(b"\0")
            command = words[-1].decode("utf-8", "replace") if words else ""
            if command and command in crontab and (stray := finder.stray(pid, one.run_id, None, told, proven=False)):
                yield stray

    def _containers(self) -> Iterator[Stray]:
        for container in self.strangers:
            # An engine tells whole seconds. What runs in a container of ours can't reach the engine.
            near = (one for one in self.lives() if one.covers(container.created) or one.covers(container.created + 1))
            one = next((one for one in near if not one.contained), None)
            if one is not None:
                told = {"door": f"a container of {container.image}, made while the run was alive"}
                what = f"container {container.name} was made"
                command = f"docker rm -f {container.name}"
                yield _queued(one.run_id, told, what, command, container.created)

    def _units(self, table: Table, finder: Finder) -> Iterator[Stray]:
        places = [("/run/systemd/transient", "systemctl stop")]
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
        places.append((f"{runtime}/systemd/transient", "systemctl --user stop"))
        for folder, stop in places:
            for unit, path in _files(folder):
                if unit.endswith((".service", ".timer")) and not _NOT_RUN_BY_HAND.match(unit):
                    yield from self._unit(table, finder, unit, path, stop)

    def _unit(self, table: Table, finder: Finder, unit: str, path: str, stop: str) -> Iterator[Stray]:
        made = _mtime(path)
        one = next((one for one in self.lives() if one.covers(made)), None) if made else None
        if one is None:
            return
        told = {"door": f"systemd unit {unit} was made while the run was alive"}
        members = []
        if unit.endswith(".service"):
            by_manager = (p for p, s in table.stats.items() if _is_manager(table.stats.get(s.ppid), s))
            members = [p for p in by_manager if (cgroup_of(p, finder.mount) or "").endswith(f"/{unit}")]
        for pid in members:
            if stray := finder.stray(pid, one.run_id, None, told, proven=False):
                stray.command = f"{stop} {unit}"
                yield stray
        if unit.endswith(".timer"):
            yield _queued(one.run_id, told, f"systemd timer {unit} is set", f"{stop} {unit}", made)


def life(run: Recorded) -> Life | None:
    """None where the record does not tell when it began."""
    begin = moment(run.run.created_at)
    if begin is None:
        return None
    main = run.run.tasks.get(run.run.main_task)
    ends = [(run.run.ended or {}).get("ts"), main.ended_at if main else None]
    ends += [receipt.get("empty_at") for receipt in run.run.receipts]
    known = [one for one in map(moment, ends) if one]
    end = max(known) if known else time.time()
    return Life(run.run_id, begin, end, run.run.cwd, run.run.backend == "docker")


def _queued(run_id: str, told: dict[str, str], what: str, command: str, since: float | None) -> Stray:
    began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since)) if since else None
    return Stray(run_id, None, Member(0), told, what=what, command=command, since=began)


def _marked_run(text: str, home: str) -> str:
    """The run whose control file an environment names, if it is of this home."""
    found = re.search(rf"AGENTBOX_CONTROL={re.escape(home)}/runs/([^/\s;]+)/ctl/control", text)
    return found[1] if found else ""


def _is_manager(parent: Stat | None, stat: Stat) -> bool:
    return stat.ppid == 1 or (parent is not None and parent.comm == "systemd")


def _within(folder: str | None, of: str | None) -> bool:
    """Is `folder` in `of`, where that is a place that few share?"""
    if not folder or not of or of in _SHARED or of == os.path.expanduser("~") or os.path.dirname(of) == "/home":
        return False
    return folder == of or folder.startswith(of.rstrip("/") + "/")


def moment(text: object) -> float | None:
    """RFC 3339 as seconds since the epoch; None for what is none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _files(folder: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((e.name, e.path) for e in entries if e.is_file(follow_symlinks=False))
    except OSError:
        return []


def _mtime(path: str) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _text(path: str) -> str:
    try:
        return read_bytes(path, TEXT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
