"""A container's stdio over one connection of POST /containers/ID/attach, byte for byte in both directions.

Without a terminal the engine frames its output: one byte of stream number, three of zero, four of length, big
endian (Docker Engine API v1.41, "Stream format"). The connection is made before the start, so nothing is missed.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from sandbox.boxes.base import Unavailable
from sandbox.boxes.docker_engine import ACT_SECONDS, Engine

DETACH_KEYS = "ctrl-^,ctrl-^,ctrl-_,ctrl-^,ctrl-_,ctrl-_"
"""The engine can't be told to watch for no keys; nobody types these."""
HELD = 8 << 20
"""Bytes kept for a slow reader before the container has to wait for it."""
CHUNK = 1 << 16


class Attached:
    """A connection to a container's stdio."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._file = response.raw._fp.fp
        raw = getattr(self._file, "raw", self._file)
        self._socket: socket.socket = getattr(raw, "_sock", raw)
        self._socket.settimeout(None)

    def send(self, data: bytes) -> None:
        """Raises OSError when the container no longer reads."""
        self._socket.sendall(data)

    def end_input(self) -> None:
        """The container's stdin ends; its output goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._response.close()

    def pump(self, output: Output, *, tty: bool, ended: Callable[[], bool | None], broken: Callable[[], None]) -> None:
        """Pass on all output until the stream ends. `ended`: see Output.put; `broken`: called once on EPIPE."""
        output.on_broken = broken
        while True:
            fd, data = (1, self._some(CHUNK)) if tty else self._frame()
            if not data:
                return
            output.put(fd, data, ended)

    def _frame(self) -> tuple[int, bytes]:
        while True:
            header = self._exactly(8)
            if len(header) < 8:
                return 1, b""
            stream, length = struct.unpack(">BxxxL", header)
            if length:
                return (2 if stream == 2 else 1), self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count and (part := self._some(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _some(self, count: int) -> bytes:
        try:
            return bytes(self._file.read1(count))
        except (OSError, ValueError):
            return b""


def attach(engine: Engine, container: str, *, stdin: bool, logs: bool) -> Attached:
    """Open the connection. Raises Rejected or Unavailable."""
    params = {"stream": 1, "stdout": 1, "stderr": 1, "detachKeys": DETACH_KEYS}
    params |= {"stdin": 1} if stdin else {}
    params |= {"logs": 1} if logs else {}
    api = engine.api

    def act() -> Any:
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        url = api._url("/containers/{0}/attach", container)
        response = api.post(url, None, params=params, stream=True, headers=headers, timeout=ACT_SECONDS)
        api._raise_for_status(response)
        return response

    response = engine.bounded(ACT_SECONDS, act)
    try:
        return Attached(response)
    except AttributeError as error:
        raise Unavailable(f"no attach over this connection: {error}", fix="use a unix socket or tcp") from None


class Output(threading.Thread):
    """Writes to stdout and stderr in the order of arrival, so that a slow reader holds up only this thread.

    The engine drops what it still holds about two seconds after a container's end. So what is read from it is
    kept here: up to HELD bytes while the container lives, without a bound for the rest once it has ended.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.on_broken: Callable[[], None] = lambda: None
        self._queue: collections.deque[tuple[int, bytes]] = collections.deque()
        self._held = 0
        self._done = False
        self._gone: set[int] = set()
        self._change = threading.Condition()
        self.start()

    def put(self, fd: int, data: bytes, ended: Callable[[], bool | None]) -> None:
        """Take `data`; waits while too much is held, unless `ended` says that the container has ended."""
        with self._change:
            while self._held > HELD and not ended():
                self._change.wait(0.1)
            self._queue.append((fd, data))
            self._held += len(data)
            self._change.notify_all()

    def finish(self) -> None:
        """Wait until all is written."""
        with self._change:
            self._done = True
            self._change.notify_all()
        self.join()

    def run(self) -> None:
        while True:
            with self._change:
                while not self._queue and not self._done:
                    self._change.wait()
                if not self._queue:
                    return
                fd, data = self._queue.popleft()
            self._write(fd, data)
            with self._change:
                self._held -= len(data)
                self._change.notify_all()

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        while view and fd not in self._gone:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                select.select([], [fd], [], 1.0)
            except OSError as error:
                self._gone.add(fd)
                if error.errno == errno.EPIPE:
                    self.on_broken()


class Input(threading.Thread):
    """Passes stdin on until its end, which becomes the end of the container's stdin."""

    def __init__(self, attached: Attached) -> None:
        super().__init__(daemon=True)
        self._attached = attached

    def run(self) -> None:
        while True:
            data = self._read()
            if not data:
                self._attached.end_input()
                return
            try:
                self._attached.send(data)
            except OSError:
                return

    def _read(self) -> bytes:
        while True:
            try:
                return os.read(0, CHUNK)
            except BlockingIOError:
                select.select([0], [], [], 1.0)
            except OSError as error:
                if error.errno != errno.EIO or not _in_background():
                    return b""
                time.sleep(0.2)


def _in_background() -> bool:
    """Is stdin our terminal, with somebody else in its foreground?"""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        return False


def window_size() -> tuple[int, int] | None:
    """Rows and columns of the terminal on stdin or stdout (ioctl_tty(2), TIOCGWINSZ), or None."""
    for fd in (0, 1):
        with contextlib.suppress(OSError):
            rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))
            if rows and columns:
                return rows, columns
    return None


@contextlib.contextmanager
def raw_terminal(wanted: bool) -> Iterator[None]:
    """Each key goes to the container's own terminal as it is; the modes come back at the end."""
    try:
        before = termios.tcgetattr(0) if wanted and os.isatty(0) else None
        if before is not None and not _in_background():
            tty.setraw(0, termios.TCSANOW)
    except termios.error:
        before = None
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, before)
