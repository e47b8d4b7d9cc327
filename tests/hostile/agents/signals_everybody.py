"""Every signal to every process that it may signal: as nobody, in a pid namespace with a bystander of another user."""

import ctypes
import os
import signal
import time
from pathlib import Path

from tests.hostile.agents.common import INTERVAL, main_beats

NEWPID = 0x20000000  # CLONE_NEWPID, unshare(2)


def outer(name: str) -> None:
    """Beat under the pid that the outer /proc shows."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    Path(f"pid-{name}").write_text(f"{os.readlink('/proc/self')} {ticks}")
    fd = os.open(f"beat-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        os.write(fd, b".")
        time.sleep(INTERVAL)


def attack() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    while True:
        for number in signal.valid_signals():
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                pass
        time.sleep(INTERVAL)


def first() -> None:
    """The first process of the namespace: nothing may signal outwards, all of it ends with this one."""
    if os.fork() == 0:
        outer("kept")
    victim = os.fork()
    if victim == 0:
        os.setuid(65534)
        while True:
            signal.pause()
    if os.fork() == 0:
        attack()
    os.waitpid(victim, 0)
    Path("hit").touch()
    outer("first")


if ctypes.CDLL(None).unshare(NEWPID) != 0:
    raise SystemExit("no namespace")
if os.fork() == 0:
    first()
for name in ("pid-kept", "hit", "beat-first"):
    while not Path(name).exists():
        time.sleep(0.001)
main_beats()
