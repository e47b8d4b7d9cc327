"""The lines of a manifest as bytes, with bounded memory whatever the file holds."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from sandbox.manifest.record import MAX_LINE, hasher

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 256 * 1024
_FIRST_LOOK = 4096


class Line(NamedTuple):
    """`offset` and `length` in bytes, without the newline; `data` is None if it is longer than MAX_LINE.

    `ended`: has it a newline? `digest` is "" unless it was asked for.
    """

    offset: int
    length: int
    data: bytes | None
    ended: bool
    digest: str


def open_regular(path: str, flags: int, mode: int = 0o600) -> int:
    """open(2) for a manifest: never through a symbolic link, never a FIFO, device or directory.

    OSError with EINVAL for what is no regular file; opening never waits for anybody (O_NONBLOCK).
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return fd


def scan(fd: int, offset: int = 0, *, digests: bool = False) -> Iterator[Line]:
    """Each line of the open file from `offset` on, up to its present size; an empty one is none."""
    size = os.fstat(fd).st_size
    held: list[bytes] = []
    start, length, running = offset, 0, hasher()
    at = offset
    while at < size and (chunk := os.pread(fd, min(_CHUNK, size - at), at)):
        at += len(chunk)
        pieces = chunk.split(b"\n")
        for number, piece in enumerate(pieces):
            if piece:
                length += len(piece)
                held.append(piece)
                if digests:
                    running.update(piece)
                if length > MAX_LINE:
                    held.clear()
            if number < len(pieces) - 1:
                if length:
                    yield _line(start, length, held, True, running.hexdigest() if digests else "")
                    held.clear()
                    if digests:
                        running = hasher()
                start += length + 1
                length = 0
    if length:
        yield _line(start, length, held, False, running.hexdigest() if digests else "")


def last_line(fd: int, size: int) -> tuple[int, int]:
    """Offset and length, without its newline, of the last line in the first `size` bytes; (0, 0) if none."""
    end, at = 0, size
    while at > 0:
        step = min(_CHUNK if at < size else _FIRST_LOOK, at)
        at -= step
        piece = os.pread(fd, step, at)
        if not end:
            piece = piece.rstrip(b"\n")
            end = at + len(piece) if piece else 0
        if end and (found := piece.rfind(b"\n")) >= 0:
            start = at + found + 1
            return start, end - start
    return 0, end


def digest_at(fd: int, offset: int, length: int) -> str:
    """The digest of a part of the file, read piece by piece."""
    running, end = hasher(), offset + length
    while offset < end and (chunk := os.pread(fd, min(_CHUNK, end - offset), offset)):
        running.update(chunk)
        offset += len(chunk)
    return running.hexdigest()


def _line(offset: int, length: int, held: list[bytes], ended: bool, digest: str) -> Line:
    data = None if length > MAX_LINE else held[0] if len(held) == 1 else b"".join(held)
    return Line(offset, length, data, ended, digest)
