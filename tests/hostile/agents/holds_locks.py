"""An exclusive lock, of both kinds, on each file and directory of its run, in a process of its own."""

import contextlib
import fcntl
import os

from tests.hostile.agents.common import child, main_beats, run_dir

HELD: list[object] = []


def hold() -> None:
    os.setsid()
    for top, _, names in os.walk(run_dir()):
        for path in (top, *(os.path.join(top, name) for name in names)):
            with contextlib.suppress(OSError):
                HELD.append(os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR))
                fcntl.flock(HELD[-1], fcntl.LOCK_EX)
                fcntl.lockf(HELD[-1], fcntl.LOCK_EX)


child("holder", hold)
main_beats()
