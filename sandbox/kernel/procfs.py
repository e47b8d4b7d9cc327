"""Reading /proc: each read is small, tolerant and, in bulk, bounded in time.

A read of /proc/PID/cmdline or cwd can hang while the process holds its memory map in an
uninterruptible sleep, so a scan runs in a thread that the caller stops waiting for. Source: proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from sandbox.kernel.background import bounded
from sandbox.kernel.files import read_bytes

ARGV_BYTES = 4096
"""What is kept of a command line in a photograph; the rest is cut and marked."""


@dataclass(frozen=True)
class Stat:
    """Fields of /proc/PID/stat. `state` is one letter; times in clock ticks."""

    pid: int
    comm: str
    state: str
    ppid: int
    pgid: int
    session: int
    start_ticks: int
    threads: int


@dataclass(frozen=True)
class Member:
    """A process of a box as it was seen; `age` in seconds then. Fields that could not be read are None."""

    pid: int
    start_ticks: int | None = None
    comm: str | None = None
    argv: list[str] | None = None
    cwd: str | None = None
    state: str | None = None
    ppid: int | None = None
    age: float | None = None
    uid: int | None = None
    cgroup: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_stat(text: bytes) -> Stat | None:
    """The fields of a stat line; the command name may hold spaces, parentheses and newlines."""
    open_at, close_at = text.find(b"("), text.rfind(b")")
    rest = text[close_at + 1 :].split()
    if open_at < 1 or close_at < open_at or len(rest) < 20:
        return None
    try:
        return Stat(
            pid=int(text[:open_at]),
            comm=os.fsdecode(text[open_at + 1 : close_at]),
            state=rest[0].decode("ascii"),
            ppid=int(rest[1]),
            pgid=int(rest[2]),
            session=int(rest[3]),
            threads=int(rest[17]),
            start_ticks=int(rest[19]),
        )
    except (ValueError, UnicodeDecodeError):
        return None


def read_stat(pid: int) -> Stat | None:
    """None if the process is gone or can't be read: ask elsewhere which of the two."""
    try:
        return parse_stat(read_bytes(f"/proc/{pid}/stat", 4096))
    except OSError:
        return None


def look(pid: int) -> Member:
    """One process, as far as it can be read now. May hang: see `photograph`."""
    stat = read_stat(pid)
    if stat is None:
        return Member(pid)
    age = max(0.0, _uptime() - stat.start_ticks / _TICKS)
    return Member(
        pid=pid,
        start_ticks=stat.start_ticks,
        comm=stat.comm,
        argv=_argv(pid),
        cwd=_link(f"/proc/{pid}/cwd"),
        state=stat.state,
        ppid=stat.ppid,
        age=round(age, 3),
        uid=_uid(pid),
    )


def photograph(pids: Iterable[int], seconds: float) -> list[Member]:
    """What can be read of `pids` within `seconds`; the others come back with their pid alone.

    Stat first for all, since it never hangs long, then the rest one by one in a thread of its own: a read
    that hangs costs the details of those after it, never the stop. Works without a thread, bounded by nothing,
    only for zero pids; when no thread can be made (pid limit), stat alone is read.
    """
    pids = list(pids)
    seen: dict[int, Member] = {}

    def scan() -> None:
        for pid in pids:
            seen[pid] = look(pid)

    if not bounded(scan, seconds):
        for pid in pids:
            if pid not in seen and (stat := read_stat(pid)):
                seen[pid] = Member(pid, stat.start_ticks, stat.comm, state=stat.state, ppid=stat.ppid)
    return [seen.get(pid, Member(pid)) for pid in pids]


def environ(pid: int) -> dict[str, str] | None:
    """The environment that a process was started with, or None if it can't be read."""
    try:
        raw = read_bytes(f"/proc/{pid}/environ", 1 << 20)
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def own_environ() -> dict[bytes, bytes]:
    """This process's environment as exec handed it over, before the interpreter touched it."""
    try:
        raw = read_bytes("/proc/self/environ", 1 << 24)
    except OSError:
        return dict(os.environb)
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def wall_start(start_ticks: int) -> str:
    """A start in clock ticks since boot as wall-clock time (UTC, RFC 3339, whole seconds)."""
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_boot_time() + start_ticks // _TICKS))


def started_at(start_ticks: int) -> float:
    """A start in clock ticks since boot as seconds since the epoch, as exact as a tick: for comparisons."""
    import time

    return time.time() - _uptime() + start_ticks / _TICKS


@lru_cache(maxsize=1)
def _boot_time() -> int:
    """The `btime` of /proc/stat: the same at each reading, which now minus the uptime is not."""
    for line in read_bytes("/proc/stat", 1 << 20).split(b"\n"):
        if line.startswith(b"btime "):
            return int(line.split()[1])
    return 0


def wchan(pid: int) -> str:
    """The kernel function in which a process sleeps, or ""."""
    try:
        return read_bytes(f"/proc/{pid}/wchan", 256).decode("ascii", "replace").strip("0")
    except OSError:
        return ""


_TICKS = os.sysconf("SC_CLK_TCK")


def _uptime() -> float:
    import time

    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _argv(pid: int) -> list[str] | None:
    try:
        raw = read_bytes(f"/proc/{pid}/cmdline", ARGV_BYTES + 1)
    except OSError:
        return None
    cut = len(raw) > ARGV_BYTES
    words = [os.fsdecode(word) for word in raw[:ARGV_BYTES].removesuffix(b"\0").split(b"\0")] if raw else []
    return [*words, "[cut]"] if cut else words


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
