"""The files of its orders replaced: by what never ends, what never answers, or what says the contrary.

usage: replaces_its_order.py KIND
"""

import os
import shutil
import sys
from pathlib import Path

from tests.hostile.agents.common import main_beats, run_dir


def replace(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "in").mkdir(parents=True)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "huge":
        path.write_bytes(b"RUN " * (5 << 20))
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "locked":
        path.touch(0)


kind = sys.argv[2]
orders = run_dir() / "ctl"
if kind == "gone":
    shutil.rmtree(orders)
elif kind == "file":
    shutil.rmtree(orders)
    orders.touch()
else:
    for path in (orders / "control", orders / "tasks" / "main"):
        replace(path, kind)
main_beats()
