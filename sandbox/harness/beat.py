"""Reading a worker's marks (see gate.py): what it says of itself, for people, never as proof."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

TAIL = 1 << 16
LATEST = 1e12
WORDS = ("call", "quiet", "tick", "stop")


@dataclass(frozen=True)
class Mark:
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


def _parse(line: bytes) -> Mark | None:
    parts = line.decode("ascii", "replace").split(" ")
    if len(parts) != 5 or parts[1] not in WORDS:
        return None
    try:
        mark = Mark(float(parts[0]), parts[1], int(parts[2]), parts[3][:64], int(parts[4]))
    except ValueError:
        return None
    return mark if abs(mark.at) < LATEST else None  # no infinity, and no NaN
