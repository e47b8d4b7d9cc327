"""The loop of `top`: look, draw, wait for a key, a look or a signal; and the terminal given back at its end."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live

from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.top.act import WORDS, Actions
from sandbox.top.keys import key_by_key, read_keys
from sandbox.top.sample import Frame, Sampler
from sandbox.top.view import TWICE, Screen, lines, place

TWICE_SECONDS = 10.0
"""Within how long a key of TWICE has to come a second time."""
PAGE = 10
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGWINCH)
MOVES = {"up": -1, "down": 1, "page up": -PAGE, "page down": PAGE, "first": -(10**9), "last": 10**9}


class Top:
    """One sitting at the terminal. `interval`: seconds between two looks."""

    def __init__(self, home: Home, sampler: Sampler, interval: float) -> None:
        self.screen, self.interval = Screen(), interval
        self.frame = self._next = Frame(time.time(), looked=False)
        self.actions = Actions(home, self.tell)
        self.sampler = sampler
        self.ended_by: int | None = None
        self._armed_at = 0.0
        self._reader, self._writer = os.pipe()
        for fd in (self._reader, self._writer):
            os.set_blocking(fd, False)
        self._leave, self._look_now = threading.Event(), threading.Event()

    def run(self) -> int:
        """Until q or a signal. The exit status: 0, or 128 and the signal's number."""
        looking = threading.Thread(target=self._look, daemon=True, name="look")
        with self._signals():
            looking.start()
            try:
                while self._sit() == "suspend":
                    os.kill(0, signal.SIGTSTP)
            finally:
                self._leave.set()
                self._look_now.set()
        if waiting := self.actions.under_way():
            sys.stderr.write(f"agentbox: waiting for the end of: {', '.join(waiting)} (Ctrl+C leaves it undone)\n")
            self.actions.wait()
        return 0 if self.ended_by is None else 128 + self.ended_by

    def tell(self, line: str) -> None:
        """A line for the foot of the screen, from any thread."""
        self.screen.messages.append(line)
        self._look_now.set()
        self._wake()

    def _sit(self) -> str:
        """Draw and take keys until `quit` or `suspend`; the terminal is as before on return, however it comes."""
        console = Console(file=sys.stdout, highlight=False, markup=False)
        with key_by_key(0), Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
            while True:
                self._disarm()
                self._take()
                shown = lines(self.frame, self.screen, console.width, console.height)
                live.update(Group(*shown), refresh=True)
                ready, _, _ = select.select([0, self._reader], [], [], self.interval)
                if self._reader in ready:
                    os.read(self._reader, 1024)
                if self.ended_by is not None:
                    return "quit"
                for key in read_keys(0) if 0 in ready else ():
                    if key in ("q", "\x1a"):
                        return "quit" if key == "q" else "suspend"
                    self._press(key)

    def _press(self, key: str) -> None:
        again, self.screen.armed = self.screen.armed == key, ""
        if key in TWICE and not again and (key == "E" or self.screen.selected is not None):
            self.screen.armed, self._armed_at = key, time.monotonic()
        elif key == "E":
            self.actions.emergency()
        else:
            self._act(key)

    def _act(self, key: str) -> None:
        if key in MOVES and self.frame.rows:
            at = place(self.frame, self.screen.selected)
            last = len(self.frame.rows) - 1
            # Where nothing is selected, a step selects the first row that there is from that side.
            at = (last if key == "last" else 0) if at is None else min(max(0, at + MOVES[key]), last)
            self.screen.selected = self.frame.rows[at].key
        elif key in WORDS and self.screen.selected is None:
            self.tell("nothing is selected")
        elif key in WORDS and self.screen.selected is not None:
            self.actions.begin(key, *self.screen.selected)

    def _disarm(self) -> None:
        if time.monotonic() - self._armed_at > TWICE_SECONDS:
            self.screen.armed = ""

    def _look(self) -> None:
        """In a thread of its own: a look may take long, and the keys must not wait for it."""
        while not self._leave.is_set():
            try:
                self._next = self.sampler.sample()
            except AgentboxError as error:
                self._next = Frame(time.time(), self.frame.rows, problems=[str(error)])
            self._wake()
            self._look_now.wait(self.interval)
            self._look_now.clear()

    def _take(self) -> None:
        """Only here, between two keys, does a frame change: a key acts on the row that was seen when it was pressed.

        The selection is a run or a task, wherever its row stands, and none where it is gone.
        """
        first = not self.frame.rows
        self.frame = self._next
        if first and self.frame.rows:
            self.screen.selected = self.frame.rows[0].key
        elif place(self.frame, self.screen.selected) is None:
            self.screen.selected = None
            self.screen.armed = "E" if self.screen.armed == "E" else ""

    def _wake(self) -> None:
        try:
            os.write(self._writer, b".")
        except BlockingIOError:
            pass  # it is awake

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals wake the loop; after it they do what they did before."""

        def heard(number: int, _: object) -> None:
            if number != signal.SIGWINCH:
                self.ended_by = number
            self._wake()

        before = {number: signal.signal(number, heard) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
