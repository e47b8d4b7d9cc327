"""A TCP address in front of an engine's unix socket, so that it is reached as an engine of another host is."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Listens on loopback; `host` for DOCKER_HOST. Half-closed connections stay half-closed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self.path)
                self.open += [client, engine]
                for source, target in ((client, engine), (engine, client)):
                    threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for one in self.open:
            one.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
