"""Keys, one by one as they are pressed: the terminal without its line editing, and given back as it was.

Sources: termios(3) (ICANON, ECHO, ISIG), tty(4); for the arrow keys XTerm Control Sequences, "PC-Style Function Keys".
"""

from __future__ import annotations

import os
import termios
from collections.abc import Iterator
from contextlib import contextmanager

SEQUENCES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "first",
    b"\x1b[F": "last",
}
LETTERS = {"k": "up", "j": "down", "g": "first", "G": "last", "\x03": "q", "\x04": "q"}


@contextmanager
def key_by_key(fd: int) -> Iterator[None]:
    """No echo, no lines, no signals from keys; the settings from before come back whatever happens."""
    before = termios.tcgetattr(fd)
    now = termios.tcgetattr(fd)
    now[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
    termios.tcsetattr(fd, termios.TCSADRAIN, now)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def read_keys(fd: int) -> list[str]:
    """The keys that were pressed since; ["q"] once the terminal is gone. What is no key of ours is left out."""
    try:
        data = os.read(fd, 1024)
    except OSError:
        return ["q"]
    return decode(data) if data else ["q"]


def decode(data: bytes) -> list[str]:
    """Letters as they are, others by name."""
    found = []
    while data:
        name = next((sequence for sequence in SEQUENCES if data.startswith(sequence)), None)
        if name:
            found.append(SEQUENCES[name])
            data = data[len(name) :]
        elif data[:1] == b"\x1b":
            return found  # a key of no use here; its rest must not be taken for letters
        else:
            letter = data[:1].decode("latin-1")
            found.append(LETTERS.get(letter, letter))
            data = data[1:]
    return found
