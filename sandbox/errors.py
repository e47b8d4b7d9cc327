"""Errors that reach a person: one line that says what, why and what to do, and the exit code."""

from __future__ import annotations

import sys

# `run` and `spawn` (the same numbers as docker and env use, and 75 = EX_TEMPFAIL of sysexits.h)
AGENTBOX_FAILED = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
TIMED_OUT = 124
REFUSED = 75

# `kill`, `abort`, `estop`
PROVEN_EMPTY = 0
NOT_PROVEN = 1
USAGE = 2
NO_SUCH_RUN = 3
NOT_RECORDED = 4


def printable(text: str) -> str:
    """Text that can't move the cursor or break out of its line: what is not printable becomes an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The same with each run of white space as one space."""
    return printable(" ".join(text.split()))


def number_of(count: int, what: str) -> str:
    """`1 process`, `2 processes`, `0 runs`: of an English word whose plural is regular."""
    ending = "" if count == 1 else "es" if what.endswith("s") else "s"
    return f"{count} {what}{ending}"


def warn(text: str) -> None:
    """One line on stderr, if there is one that takes it."""
    try:
        sys.stderr.write(f"agentbox: {one_line(text)}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


class AgentboxError(Exception):
    """What went wrong, in one line, with the way out.

    `what`: the failure and its reason. `fix`: the command or the step that mends it, or "".
    `code`: the exit status of the command that meets it, or None for the verb's own default.
    """

    def __init__(self, what: str, *, fix: str = "", code: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.code = code

    def __str__(self) -> str:
        return one_line(f"{self.what}; {self.fix}" if self.fix else self.what)


class ReaderGone(Exception):
    """Nobody reads our output any more (`agentbox ps | head`)."""


class Refused(AgentboxError):
    """A stop order holds: nothing may start."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what, fix=fix, code=REFUSED)
