"""Whole reads of the kernel's small files, and giving back the blocks of a large one. Source: proc(5), fallocate(2)."""

from __future__ import annotations

import ctypes
import os
import sys

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h


def read_all(fd: int, size: int = sys.maxsize) -> bytes:
    """What is left of an open file, at most `size` bytes of it. Raises OSError."""
    parts = []
    while size > 0 and (part := os.read(fd, min(size, 1 << 16))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_bytes(path: str, size: int = sys.maxsize) -> bytes:
    """At most `size` bytes of a file, without what open() asks about it first. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_all(fd, size)
    finally:
        os.close(fd)


def punch_hole(fd: int, start: int, length: int) -> None:
    """Free the blocks of `length` bytes from `start` on; they read as zeros, and the size stays as it is.

    Raises OSError: EOPNOTSUPP where the file system can't do that.
    """
    call = ctypes.CDLL(None, use_errno=True).fallocate64
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, _PUNCH_HOLE | _KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
