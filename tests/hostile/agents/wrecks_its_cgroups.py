"""Each cgroup down from the run's own parent: removed where that works, bounds set to nothing, rights taken away."""

import contextlib
import os

from tests.hostile.agents.common import BOXED, child, main_beats, own_cgroup

child("one", os.setsid)
if BOXED:
    top = own_cgroup().parent
    (own_cgroup() / "a" / "b").mkdir(parents=True)
    for where, folders, _ in os.walk(top, topdown=False):
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(where, folder))
        for name in ("cgroup.max.descendants", "cgroup.max.depth", "pids.max"):
            with contextlib.suppress(OSError), open(os.path.join(where, name), "w") as file:
                file.write("0" if name != "pids.max" else "1")
        for name in os.listdir(where):
            with contextlib.suppress(OSError):
                os.chmod(os.path.join(where, name), 0)
        with contextlib.suppress(OSError):
            os.chmod(where, 0)
main_beats()
