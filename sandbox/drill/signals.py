"""Ctrl+C, SIGTERM and SIGHUP end a drill through its clean-up, which no second one interrupts."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Once:
    """While entered, the first of ENDS raises (KeyboardInterrupt, or SystemExit with 128+N); later ones do nothing.

    After `hush` none raises. What was ignored before stays ignored. Once one has raised, later ones do nothing for
    good: the process is on its way out, with the first one's exit status.
    """

    def __init__(self) -> None:
        self._quiet = False
        self._raised = False
        self._before: list[tuple[int, Any]] = []

    def __enter__(self) -> Once:
        for number in ENDS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before.append((number, before))
                signal.signal(number, self._raise)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in () if self._raised else self._before:
            signal.signal(number, before)

    def hush(self) -> None:
        self._quiet = True

    def _raise(self, number: int, _: FrameType | None) -> None:
        if self._quiet:
            return
        self._quiet = self._raised = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)
