"""No trace of the run in its environment: overwritten in memory, and a worker that was exec'd without any."""

import ctypes
import os

from tests.hostile.agents.common import again, child, main_beats, memory_of


def bare(name: str) -> None:
    os.setsid()
    again("beats", name, bare=True)


def wipe() -> None:
    begin, length = memory_of(50)
    ctypes.memset(begin, 0, length)
    os.environ.clear()


child("bare", act=bare)
child("wiped", wipe)
wipe()
main_beats()
