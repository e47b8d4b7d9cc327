"""Mounts that nobody else sees: a small disk, and a file system that never answers."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_MNT_FORCE, _MNT_DETACH = 1, 2


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def own_mounts() -> Iterator[None]:
    """This process, and what it starts, in a mount namespace of its own; all made in it goes with it.

    Root only, and with no second thread at its end: setns(2).
    """
    before, folder = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), Path.cwd()
    try:
        _check(_LIBC.unshare(_CLONE_NEWNS))
        try:
            mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)
            yield
        finally:
            _check(_LIBC.setns(before, _CLONE_NEWNS))
            os.chdir(folder)
    finally:
        os.close(before)


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    kind_text = kind.encode() if kind else None
    _check(_LIBC.mount(source.encode(), os.fsencode(target), kind_text, flags, options.encode()))


_INIT = 26
_HEADER = struct.Struct("=IIQQIIII")


class Hung:
    """A file system at the empty directory `path` that hears every request and answers none.

    Whoever asks sleeps, and after SIGKILL does so in state D, until `close`: the kernel waits without end for
    the answer to a request that the server has read. Documentation/filesystems/fuse.rst, linux/fuse.h.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests = 0
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            mount("hung", path, "fuse", 0, f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other")
        except OSError:
            os.close(self.fd)
            raise
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self.fd, 1 << 17)
            except OSError:
                return  # unmounted
            opcode, unique = _HEADER.unpack_from(request)[1:3]
            if opcode == _INIT:
                answer = struct.pack("=IIIIHHIIHHI7I", 7, 31, 4096, 0, 8, 8, 4096, 1, 1, 0, *[0] * 8)
                os.write(self.fd, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
            else:
                self.requests += 1

    def close(self) -> None:
        """Abort what waits, and unmount; once."""
        if self.fd >= 0:
            _check(_LIBC.umount2(os.fsencode(self.path), _MNT_FORCE | _MNT_DETACH))
            self.thread.join(10)
            os.close(self.fd)
            self.fd = -1
