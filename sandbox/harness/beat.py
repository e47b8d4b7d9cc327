"""Reading a worker's marks (see gate.py): what it says of itself, for people, never as proof."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

TAIL = 1 << 16
WORDS = ("call", "quiet", "tick", "stop")


class Mark(NamedTuple):
    """`at`: seconds since 1970, by the worker's clock. `name`: of the call. `tokens`: of a tick."""

    at: float
    word: str
    generation: int
    name: str
    tokens: int


def marks(path: str) -> list[Mark]:
    """The last marks, oldest first, at most as many as fit into 64 KiB; [] where there are none to be read.

    The file is written by the worker: it may be anything, and never makes this hang or raise.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return []
        text = os.pread(fd, TAIL, max(0, info.st_size - TAIL))
    except OSError:
        return []
    finally:
        os.close(fd)
    return [mark for mark in map(_parse, text.split(b"\n")) if mark]


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
        return Mark(float(at), parts[1], int(parts[2]), parts[3][:64], int(parts[4]))
    except ValueError:
        return None
