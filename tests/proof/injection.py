"""strace(1) on a process that waits to begin: which system calls it makes, and a fault at the n-th of a name.

The counts begin where the process is let go, so the start of the interpreter is none of them. strace counts for
each thread by itself; a signal comes before the call is carried out, an error instead of it.
"""

from __future__ import annotations

import collections
import errno
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0
_CALL = re.compile(r"^(\d+) +(\w+)\(")

FILE = ("ENOSPC", "EIO", "ENOMEM", "EINTR")
ERRORS: dict[str, tuple[str, ...]] = {
    "openat": ("EMFILE", *FILE),
    "write": ("ENOSPC", "EIO", "EINTR"),
    "read": ("EIO", "EINTR", "ENOMEM"),
    "pread64": ("EIO", "EINTR"),
    "lseek": ("EIO",),
    "fsync": ("EIO", "ENOSPC", "EINTR"),
    "mkdir": FILE,
    "rename": FILE,
    "link": FILE,
    "unlink": ("EIO", "ENOMEM"),
    "rmdir": ("EIO", "ENOMEM", "EINTR"),
    "chmod": ("EIO",),
    "fchmod": ("EIO",),
    "setxattr": ("ENOSPC", "EIO"),
    "getxattr": ("EIO", "ENOMEM"),
    "newfstatat": ("EIO", "ENOMEM"),
    "fstat": ("EIO", "ENOMEM"),
    "statx": ("EIO", "ENOMEM"),
    "access": ("EIO", "ENOMEM"),
    "faccessat2": ("EIO", "ENOMEM"),
    "readlink": ("EIO", "ENOMEM"),
    "getdents64": ("EIO", "ENOMEM"),
    "flock": ("EINTR", "ENOMEM"),
    "poll": ("EINTR", "ENOMEM"),
    "pipe2": ("EMFILE",),
    "clone": ("ENOMEM",),
    "clone3": ("ENOMEM",),
    "pidfd_open": ("EMFILE", "ENOMEM"),
    "socket": ("EMFILE", "ENOMEM"),
    "execve": ("EIO", "ENOMEM"),
    "mmap": ("ENOMEM",),
    "wait4": ("EINTR",),
    "rt_sigtimedwait": ("EINTR",),
}
"""What each call may fail with. Not close(2), which always closes, nor what only the interpreter makes."""
LASTING = {
    "openat": "EMFILE",
    "write": "ENOSPC",
    "fsync": "EIO",
    "clone": "ENOMEM",
    "mmap": "ENOMEM",
    "mkdir": "ENOSPC",
}
"""Faults that go on once they have begun: no descriptor, no memory, no room."""


@dataclass(frozen=True)
class Fault:
    """`what`: KILL, or the name of an errno; `when`: as strace takes it, the number of the call, `5+` from it on."""

    call: str
    when: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} at {self.call} {self.when}"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Out of its own words."""
        what, _, call, when = text.split()
        return cls(call, when, what)

    @property
    def option(self) -> str:
        """strace's `-e inject=`."""
        how = "signal=KILL" if self.what == "KILL" else f"error={self.what}"
        return f"inject={self.call}:{how}:when={self.when}"


def attach(pid: int, log: Path, *, follow: bool, fault: Fault | None = None) -> int:
    """Trace the stopped process `pid`, let it go, and give strace's pid. `follow`: its children and threads, too."""
    argv = ["strace", "-qq", "-s", "0", "-o", str(log), "-p", str(pid), *(["-f"] if follow else [])]
    if fault:
        argv += ["-e", f"trace={fault.call}", "-e", fault.option]
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    tracer = os.posix_spawnp("strace", argv, os.environ)
    deadline = time.monotonic() + PATIENCE
    while f"TracerPid:\t{tracer}\n" not in Path(f"/proc/{pid}/status").read_text():
        if time.monotonic() > deadline or os.waitid(os.P_PID, tracer, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise RuntimeError(f"strace could not attach to {pid}")
        time.sleep(0.0005)
    os.kill(pid, signal.SIGCONT)
    return tracer


def end(tracer: int) -> None:
    """End strace; the kernel lets its processes go. Not by SIGTERM, which strace may miss right before it waits."""
    os.kill(tracer, signal.SIGKILL)
    os.waitpid(tracer, 0)


def calls(log: Path) -> dict[str, int]:
    """How often each system call was made by the thread of the trace that made the most of it."""
    counted: dict[tuple[str, str], int] = collections.Counter()
    for line in log.read_text(errors="replace").splitlines():
        if found := _CALL.match(line if line[:1].isdigit() else f"0 {line}"):
            counted[found[1], found[2]] += 1
    most: dict[str, int] = {}
    for (_, name), count in counted.items():
        most[name] = max(count, most.get(name, 0))
    return most


def kills(made: dict[str, int]) -> list[Fault]:
    """A crash before each of the calls."""
    return [Fault(name, str(n), "KILL") for name, count in sorted(made.items()) for n in range(1, count + 1)]


def errors(made: dict[str, int]) -> list[Fault]:
    """Each call failing once with each of its errors, and failing from it on."""
    found = []
    for name, count in sorted(made.items()):
        for n in range(1, count + 1):
            found += [Fault(name, str(n), what) for what in ERRORS.get(name, ())]
            if name in LASTING:
                found.append(Fault(name, f"{n}+", LASTING[name]))
    assert all(hasattr(errno, fault.what) for fault in found)
    return found
