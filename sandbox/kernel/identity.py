"""Who a process is: boot, pid and start time, compared with three answers.

A pid alone names whoever holds it now. Start time in clock ticks since boot (field 22 of
/proc/PID/stat, proc(5)) tells two holders apart within one boot; boot_id (random(4)) tells boots apart.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from sandbox.kernel.procfs import read_stat

_boot_id = ""


def boot_id() -> str:
    """This boot's id, a UUID, or "" where the kernel does not tell."""
    global _boot_id
    if not _boot_id:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                _boot_id = file.read().strip()
        except OSError:
            return ""
    return _boot_id


@dataclass(frozen=True)
class Identity:
    """`start_ticks` in clock ticks since boot."""

    boot_id: str
    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of the process that holds `pid` now, or None if there is none or it can't be read."""
        stat = read_stat(pid)
        return cls(boot_id(), pid, stat.start_ticks) if stat else None

    def alive(self) -> bool | None:
        """Is this very process alive? A zombie is not; None = could not tell (never a reason to signal)."""
        if not (self.boot_id and boot_id()):
            return None
        if self.boot_id != boot_id():
            return False
        stat = read_stat(self.pid)
        if stat is None:
            return None if os.path.exists(f"/proc/{self.pid}") else _gone(self.pid)
        return stat.start_ticks == self.start_ticks and stat.state not in "ZX"

    def pidfd(self) -> int | None:
        """A pidfd that refers to this very process, or None; the caller closes it (pidfd_open(2))."""
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:
            return None
        # The order matters: the fd is taken first, so a pid reused after the look can't be what it holds.
        if self.alive():
            return fd
        os.close(fd)
        return None

    def signal(self, number: int) -> bool:
        """Send a signal to this very process; False if it isn't there or may not be signalled."""
        fd = self.pidfd()
        if fd is None:
            return False
        try:
            signal.pidfd_send_signal(fd, number)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True


def _gone(pid: int) -> bool | None:
    """A pid with no /proc entry is dead, unless /proc hides others' processes (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None
    return None
