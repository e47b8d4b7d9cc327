"""Reading a worker's marks (see gate.py): what it says of itself, for people, never as proof."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

TAIL = 1 << 16
WORDS = ("call", "quiet", "tick", "stop")
LATEST = 32_503_680_000.0
"""The year 3000 in seconds since 1970."""


class Mark(NamedTuple):
    """`at`: seconds since 1970, by the worker's clock. `name`: of the call. `tokens`: of a tick."""

    at: float
    word: str
    generation: int
    name: str
    tokens: int


class Reading(NamedTuple):
    """What a file of marks holds. `cut`: bytes before the first that were not read; `bad`: lines that are no marks.

    `written_at`: when the file was last written to, in seconds since 1970, by the kernel; None where it is none.
    """

    marks: list[Mark]
    cut: int = 0
    bad: int = 0
    written_at: float | None = None


def marks(path: str) -> list[Mark]:
    """The last marks, oldest first, at most as many as fit into 64 KiB; [] where there are none to be read."""
    return read(path).marks


def read(path: str, most: int = TAIL) -> Reading:
    """The last `most` bytes of a file of marks, oldest first.

    The file is written by the worker: it may be anything, and never makes this hang or raise.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return Reading([])
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return Reading([])
        cut = max(0, info.st_size - most)
        text = os.pread(fd, most, cut)
    except OSError:
        return Reading([])
    finally:
        os.close(fd)
    lines = text.split(b"\n")
    # What stands before the first line end of a cut file is part of a line; after the last one comes nothing.
    lines = [line for line in lines[1 if cut else 0 :] if line]
    found = [mark for mark in map(_parse, lines) if mark]
    return Reading(found, cut, len(lines) - len(found), info.st_mtime)


def under_way(seen: list[Mark]) -> dict[str, Mark]:
    """The calls that have begun and not ended, by name: the mark of each one's begin."""
    found: dict[str, Mark] = {}
    for mark in seen:
        found.pop(mark.name, None)
        if mark.word == "call":
            found[mark.name] = mark
    return found


def _parse(line: bytes) -> Mark | None:
    parts = line.decode("ascii", "replace").split(" ")
    if len(parts) != 5 or parts[1] not in WORDS:
        return None
    try:
        # A date(1) without fractions leaves something else after the point.
        at = parts[0] if parts[0].replace(".", "", 1).isdigit() else parts[0].partition(".")[0]
        mark = Mark(float(at), parts[1], int(parts[2]), parts[3][:64], int(parts[4]))
    except ValueError:
        return None
    # Neither a NaN nor a year that no calendar has.
    return mark if 0 <= mark.at < LATEST and 0 <= mark.tokens < 1 << 53 else None
