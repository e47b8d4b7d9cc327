"""Forty lines of processes, each of which goes on in a child of its own at every step, in a session of its own."""

import os
import signal
import time

from tests.hostile.agents.common import BOXED, child, main_beats, register

LINES = 40 if BOXED else 1


def hop(name: str) -> None:
    register(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.002 if BOXED else 0.02)


for number in range(LINES):
    child(f"line{number}", act=hop)
main_beats()
