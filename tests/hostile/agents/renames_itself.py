"""Another name at each beat: argv overwritten, comm changed, its file on the disk removed."""

import ctypes
import os
import time
from pathlib import Path

from tests.hostile.agents.common import INTERVAL, child, memory_of, register


def rename(name: str) -> None:
    register(name)
    Path("ready").touch() if name == "main" else None
    begin, length = memory_of(48)
    fd = os.open(f"beat-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    number = 0
    while True:
        number += 1
        shown = (f"[kworker/{number}]".encode() + b"\0\xff\n\x1b[2J" * 9).ljust(length, b"\0")[:length]
        ctypes.memmove(begin, shown, length)
        Path("/proc/self/comm").write_bytes(b"(\n) S 1" if number % 2 else b"kthreadd")
        os.write(fd, b".")
        time.sleep(INTERVAL)


child("one", os.setsid, act=rename)
rename("main")
