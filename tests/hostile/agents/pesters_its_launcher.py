"""A flood of signals at the launcher that watches it; none of those that say that an end is wanted."""

import os
import signal
import time

from tests.hostile.agents.common import BOXED, child, main_beats, register

NUMBERS = (signal.SIGCHLD, signal.SIGWINCH, signal.SIGCONT, signal.SIGURG, signal.SIGRTMIN, signal.SIGRTMAX)


def ignore() -> None:
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def pester(name: str) -> None:
    ignore()
    register(name)
    while True:
        for number in NUMBERS if BOXED else ():
            os.kill(parent, number)
        time.sleep(0.001)


ignore()
parent = os.getppid()
for name in ("one", "two"):
    child(name, act=pester)
main_beats()
