"""Telling the service manager how we are: sd_notify(3), without its library. No manager, no harm."""

from __future__ import annotations

import os
import socket


def notify(text: str) -> bool:
    """Send `READY=1`, `STATUS=...` and the like, newline-separated; False where there is nobody to tell.

    Never waits: a manager that does not read must not hold up a stop.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address[0] == "@":  # the abstract namespace, unix(7)
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(text.encode("utf-8", "replace"), address)
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """How often the manager wants `WATCHDOG=1` at least, or None (sd_watchdog_enabled(3))."""
    text, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdigit() or int(text) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(text) / 1e6
