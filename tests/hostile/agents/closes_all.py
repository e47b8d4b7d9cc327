"""No descriptor, no root directory of its own, no working directory: nothing by which to find it but the kernel."""

import os
import time
from pathlib import Path

from tests.hostile.agents.common import BOXED, INTERVAL, child, main_beats, register


def hide(name: str) -> None:
    register(name)
    beats = Path.cwd() / f"beat-{name}"
    if BOXED:  # the bystander is found by it afterwards
        os.mkdir("hole")
        os.chdir("hole")
        os.rmdir("../hole")
    os.setsid()
    os.closerange(0, 4096)
    while True:
        fd = os.open(beats, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, b".")
        os.close(fd)
        time.sleep(INTERVAL)


child("one", act=hide)
main_beats()
