"""inotify(7): which names in a directory were made, moved in, written or taken away."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, Q_OVERFLOW, IGNORED, ISDIR = 0x2000, 0x4000, 0x8000, 0x40000000
ONLYDIR = 0x01000000

GONE = DELETE_SELF | MOVE_SELF | UNMOUNT | IGNORED
"""The watch is over, or the directory is no longer what its path names."""

_EVENT = struct.Struct("iIII")


@dataclass(frozen=True)
class Event:
    """`path`: the watched directory as it was given to `watch`, "" at an overflow; `name`: the entry in it, or ""."""

    path: str
    mask: int
    name: str


class Inotify:
    """One inotify instance. Raises OSError: EMFILE from the constructor and ENOSPC from `watch` are limits."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def _call(self, name: str, *arguments: object) -> int:
        answer = int(getattr(self._libc, name)(*arguments))
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer

    def watch(self, path: str, mask: int) -> None:
        """Watch a directory; again is no harm, and follows a path that names another directory by now."""
        number = self._call("inotify_add_watch", self.fd, os.fsencode(path), ctypes.c_uint32(mask | ONLYDIR))
        if self._numbers.get(path, number) != number:
            self.unwatch(path)
        self._paths[number] = path
        self._numbers[path] = number

    def unwatch(self, path: str) -> None:
        """Stop watching a directory; one that is not watched is no harm."""
        number = self._numbers.get(path)
        if number is None:
            return
        self._drop(number)
        try:
            self._call("inotify_rm_watch", self.fd, number)
        except OSError:
            pass  # the kernel has dropped it already

    def _drop(self, number: int) -> None:
        path = self._paths.pop(number, "")
        if self._numbers.get(path) == number:
            del self._numbers[path]

    def read(self) -> list[Event]:
        """The events that are there, without waiting."""
        found: list[Event] = []
        while True:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return found
            found += self._parse(data)

    def _parse(self, data: bytes) -> list[Event]:
        found, at = [], 0
        while at + _EVENT.size <= len(data):
            number, mask, _cookie, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            path = self._paths.get(number, "")
            if mask & IGNORED:
                self._drop(number)
            if path or mask & Q_OVERFLOW:
                found.append(Event(path, mask, name))
        return found

    def close(self) -> None:
        os.close(self.fd)


def limit_reached(error: OSError) -> str:
    """What an error of inotify means and which sysctl lifts it, or "" if it is no limit (inotify(7))."""
    name = {errno.EMFILE: "max_user_instances", errno.ENOSPC: "max_user_watches"}.get(error.errno or 0)
    return f"the inotify limit is reached: raise it with sysctl fs.inotify.{name}" if name else ""
