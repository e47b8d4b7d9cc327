"""A file system that does not answer: who asks it for a name sleeps uninterruptibly, as on a dead network share.

Protocol: linux/fuse.h; mount(2) with `fd=`. Root only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import threading
from pathlib import Path

_IN = struct.Struct("=IIQQIIII")  # fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, padding
_OUT = struct.Struct("=IiQ")  # fuse_out_header: len, error, unique
_INIT = 26
_QUESTIONS = (1, 3)  # LOOKUP, GETATTR


class DeadShare:
    """Mounted at `point`. `asked` is set once somebody sleeps; `answer` wakes all of them with an error."""

    def __init__(self, point: Path) -> None:
        self.point = point
        self.asked = threading.Event()
        self._open: list[int] = []
        self._answering = False
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"share", os.fsencode(point), b"fuse", 0, options):
            os.close(self.fd)
            raise OSError(ctypes.get_errno(), "mount")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self.fd, 1 << 17)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # ENODEV: unmounted
            _, opcode, unique, *_ = _IN.unpack_from(request)
            if opcode == _INIT:
                body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 16, 12, 1 << 16, 1, 0, 0, 0)
                os.write(self.fd, _OUT.pack(_OUT.size + len(body), 0, unique) + body)
            elif opcode in _QUESTIONS:
                self._open.append(unique)
                self.asked.set()
                if self._answering:
                    self.answer()

    def answer(self) -> None:
        """No such file, to all who have asked and who will."""
        self._answering = True
        while self._open:
            with contextlib.suppress(OSError):
                os.write(self.fd, _OUT.pack(_OUT.size, -errno.ENOENT, self._open.pop()))

    def close(self) -> None:
        self.answer()
        ctypes.CDLL(None).umount2(os.fsencode(self.point), 2)  # MNT_DETACH
        self._thread.join()
        os.close(self.fd)
