"""Giving back the blocks of an open file. Source: fallocate(2)."""

from __future__ import annotations

import ctypes
import os

_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h


def punch_hole(fd: int, start: int, length: int) -> None:
    """Free the blocks of `length` bytes from `start` on; they read as zeros, and the size stays as it is.

    Raises OSError: EOPNOTSUPP where the file system can't do that.
    """
    call = ctypes.CDLL(None, use_errno=True).fallocate64
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, _PUNCH_HOLE | _KEEP_SIZE, start, length) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
