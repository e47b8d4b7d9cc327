"""The controlling terminal of the launcher: who is in its foreground, its modes, putting both right after.

termios(3), tcsetpgrp(3), tty_ioctl(2). Every call works with no terminal, and with one that has hung up: it
then does nothing. No descriptor is kept open, so the launcher never holds a terminal that everyone else has
left.
"""

from __future__ import annotations

import os
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# xterm's ctlseqs: save the cursor and leave the alternate screen (the save makes that a no-op on the normal
# one), cursor keys and keypad normal, mouse reports, focus reports and bracketed paste off, cursor on, the
# keyboard protocols of xterm and kitty off, and SGR 0 last, for a terminal that takes the one before for a
# colour.
RESET = (
    b"\x1b7\x1b[?1049l\x1b[?1l\x1b>\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1005l\x1b[?1006l\x1b[?1015l"
    b"\x1b[?2004l\x1b[?25h\x1b[<u\x1b[>4;0m\x1b[m"
)


def reserve_stdio() -> None:
    """Occupy each closed one of descriptors 0, 1, 2 with /dev/null, close-on-exec.

    So no file of ours lands on a number that something may write to, and the command still finds it closed.
    Call it before the first file is opened.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            got = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if got != number:
                os.dup2(got, number, inheritable=False)
                os.close(got)


@contextmanager
def _controlling() -> Iterator[int | None]:
    """A descriptor of the controlling terminal, or None where there is none (any more)."""
    try:
        own = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield next((fd for fd in (0, 1, 2) if _group(fd) is not None), None)
        return
    try:
        yield own
    finally:
        os.close(own)


def _group(fd: int) -> int | None:
    """The foreground process group, or None: `fd` is not our controlling terminal, or that has hung up."""
    try:
        return os.tcgetpgrp(fd)
    except OSError:
        return None


def _alive(group: int) -> bool:
    """Whether a process group has a member. A zombie counts as one."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class Terminal:
    """The controlling terminal as the launcher found it.

    present: there is one. owned: the launcher's process group was in its foreground when last looked at by
    `look`; only the shell can take that away, and only while the launcher is stopped or in the background.
    """

    def __init__(self) -> None:
        self.present = False
        self.owned = False
        self._modes: list[Any] | None = None

    @classmethod
    def save(cls) -> Terminal:
        """Remember the terminal's modes and whether its foreground is ours. No error where there is none."""
        terminal = cls()
        terminal.present = terminal.look() is not None
        return terminal

    def look(self) -> int | None:
        """The foreground process group, None without a terminal. Brings `owned` up to date.

        Modes are read at the first time that the foreground is ours: before, they are those of somebody else.
        """
        with _controlling() as fd:
            group = None if fd is None else _group(fd)
            self.owned = group == os.getpgrp()
            if fd is not None and self.owned and self._modes is None:
                try:
                    self._modes = termios.tcgetattr(fd)
                except termios.error:
                    self._modes = None
            return group

    def foreground(self) -> int | None:
        """The foreground process group now, None without a terminal."""
        with _controlling() as fd:
            return None if fd is None else _group(fd)

    def gone(self) -> bool:
        """Whether there was a terminal and it has hung up, or its session has ended."""
        return self.present and self.foreground() is None

    def give(self, group: int) -> bool:
        """Put a process group of this session into the foreground. False if the kernel refused."""
        with _controlling() as fd:
            return fd is not None and _set_group(fd, group)

    def restore(self, *, killed: bool) -> None:
        """Put right what the command left, if the terminal is ours. Call it when the command is dead.

        The foreground comes back to our group if it was ours and its present holder is dead (`killed`:
        whoever holds it). Only if the command was `killed`, not if it ended by itself: the modes as saved,
        and, if the command had changed them, as each full-screen program does, RESET. A command such as
        `stty` keeps its effect.
        """
        with _controlling() as fd:
            group = None if fd is None else _group(fd)
            if fd is None or group is None or not self.owned:
                return
            ours = os.getpgrp()
            if group != ours and not ((killed or not _alive(group)) and _set_group(fd, ours)):
                return
            if killed and self._modes is not None:
                _put_modes(fd, self._modes)


def _set_group(fd: int, group: int) -> bool:
    # From the background this would stop us with SIGTTOU, unless that is blocked (tcsetpgrp(3)).
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(fd, group)
    except OSError:
        return False
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


def _put_modes(fd: int, modes: list[Any]) -> None:
    try:
        if termios.tcgetattr(fd) == modes:
            return
        termios.tcsetattr(fd, termios.TCSANOW, modes)
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        # A terminal held by Ctrl+S takes nothing, and must not hold up the end of a run.
        if poll.poll(0) and os.environ.get("TERM", "dumb") != "dumb":
            os.write(fd, RESET)
    except (termios.error, OSError):
        return
