"""SIGKILL to the launcher that watches it: its own parent, which runs as the same user."""

import os
import signal
import time

from tests.hostile.agents.common import BOXED, child, main_beats

child("one", os.setsid)
if BOXED:
    launcher = os.getppid()
    os.kill(launcher, signal.SIGKILL)
    while os.getppid() == launcher:
        time.sleep(0.001)
main_beats()
