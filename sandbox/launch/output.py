"""The output of a detached task: the command writes into its log itself, and the launcher keeps the log's size bounded.

Nothing stands between the command and the file, so nothing slows it and nothing is lost if the launcher dies. The
launcher looks at the file's blocks at intervals; above the bound the oldest part is given back as a hole. The size
goes on growing with what was ever written, so a reader's offset stays right, and the hole says what was dropped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from sandbox.manifest.home import open_private

LIMIT = 64 << 20
SMALLEST = 256 << 10
_BLOCK = 64 << 10  # the largest block of the usual file systems: a hole that begins and ends with one has no rest
_SHORTEST, _LONGEST = 0.02, 0.25


@dataclass
class Output:
    """`limit` in bytes, 0 for none; it may be passed by what is written between two looks. `dropped`: bytes so far."""

    fd: int
    limit: int
    dropped: int = 0
    _used: int = 0
    _pause: float = _SHORTEST

    @classmethod
    def open(cls, path: str, limit: int) -> Output:
        """Raises OSError."""
        return cls(open_private(path, os.O_WRONLY | os.O_APPEND), limit)

    def take(self) -> None:
        """In the child: make it stdout and stderr."""
        os.dup2(self.fd, 1)
        os.dup2(self.fd, 2)

    def look(self) -> float | None:
        """Give back what is above the bound. The seconds until the next look, or None where there is no bound."""
        if not self.limit:
            return None
        try:
            used = self._blocks()
            if used > self.limit:
                self._drop()
            quick = used - self._used > self.limit // 16
            self._used = self._blocks()
        except OSError:
            quick = False  # a failing disk: nothing is freed, and nothing else of the launcher's work may suffer
        self._pause = max(self._pause / 2, _SHORTEST) if quick else min(self._pause * 2, _LONGEST)
        return self._pause

    def _blocks(self) -> int:
        return os.fstat(self.fd).st_blocks * 512  # stat(3type)

    def _drop(self) -> None:
        size = os.fstat(self.fd).st_size
        end = (size - self.limit // 2) // _BLOCK * _BLOCK
        if end <= 0:
            return
        from sandbox.kernel.files import punch_hole

        try:
            punch_hole(self.fd, 0, end)
            self.dropped = end
        except OSError:
            os.ftruncate(self.fd, 0)  # all of it, where nothing less can be given back
            self.dropped += size
