"""The log of the verbs that run when nobody looks: to the journal as systemd reads it, else to stderr.

loguru is imported here alone. In the journal a line begins with its priority in angle brackets (sd-daemon(3)), and
carries no time of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loguru import Logger, Record

_PRIORITY = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}
LEVELS = {"security": "CRITICAL", "warning": "WARNING", "info": "INFO"}
"""Of a finding's severity."""


def in_journal(fd: int) -> bool:
    """Is a descriptor connected to the journal? JOURNAL_STREAM names its device and inode (systemd.exec(5))."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        info = os.fstat(fd)
    except OSError:
        return False
    return device.isdigit() and inode.isdigit() and (int(device), int(inode)) == (info.st_dev, info.st_ino)


def logger() -> Logger:
    """loguru's logger, writing lines to stderr."""
    from loguru import logger as found

    found.remove()
    journal = in_journal(2)
    found.add(_write, format=_for_journal if journal else _for_people, colorize=False, backtrace=False)
    return found


def _write(message: str) -> None:
    """A line that can't be written is lost; loguru would print what went wrong, with a traceback."""
    with contextlib.suppress(OSError):
        sys.stderr.write(message)
        sys.stderr.flush()


def _for_journal(record: Record) -> str:
    # The backslash keeps loguru from reading the priority as the name of a colour.
    return f"\\<{_PRIORITY.get(record['level'].name, 6)}>{{message}}\n"


def _for_people(record: Record) -> str:
    return "{time:YYYY-MM-DD HH:mm:ss} agentbox {level}: {message}\n"
