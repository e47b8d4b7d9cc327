"""The nspawn bed: systemd as PID 1 in a root of its own, on the machine's kernel.

Root inside (`nspawn`), or the plain user dev with a lingering user manager (`nspawn-user`). No network.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.beds import root, space
from tests.beds.base import INSIDE, Job, copy_tree, missing_tools, scratch, sweep, tail

_TOOLS = ("systemd-nspawn", "mmdebstrap", "unshare", "setpriv")


class Nspawn:
    """The bed; `user` is who runs the tests inside, None for root."""

    def __init__(self, name: str, user: str | None = None) -> None:
        self.name = name
        self.user = user

    def missing(self) -> str | None:
        """Why this machine cannot have it, or None."""
        if space.cgroup2_mount() is None:
            return "no cgroup v2 mounted"
        return missing_tools(_TOOLS, "systemd-container mmdebstrap") or root.no_environment()

    def start(self, job: Job) -> Container:
        """Boot a fresh copy of the root and begin the job."""
        return self.boot(job.write)

    def boot(self, fill: Callable[[Path], None]) -> Container:
        """Boot a fresh copy of the root; `fill` is given the job's folder, whose script `run` is what it does."""
        sweep()
        folder = scratch(self.name)
        try:
            root.run(["cp", "-a", "--reflink=auto", str(root.root()), str(folder / "root")])
            copy_tree(folder / "tree")
            (folder / "job").mkdir()
            fill(folder / "job")
            (folder / "job").chmod(0o777)
            if self.user:
                (folder / "job" / "user").write_text(self.user)
            return Container(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


class Container:
    """A booted root; `folder` has root/, tree/ and job/ and goes with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = folder / "job" / "reports.jsonl"
        self.cgroup = folder.name
        argv = ["env", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "systemd-nspawn", "--quiet", "--boot"]
        argv += [f"--directory={folder}/root", "--register=no", "--keep-unit"]
        # By default all would have the root's name, and share a folder of the host's /run/systemd/nspawn.
        argv += [f"--machine={re.sub('[^a-zA-Z0-9]', '-', folder.name)[:60].rstrip('-')}", "--hostname=root"]
        argv += ["--private-network", "--resolv-conf=off", "--timezone=off"]
        argv += [f"--bind={folder}/tree:{INSIDE}/tree", f"--bind={folder}/job:{INSIDE}/job"]
        argv += [f"--bind-ro={root.environment()}:{INSIDE}/site"]
        with open(folder / "console", "wb") as console:
            self.process = space.start_private(argv, self.cgroup, console)

    def alive(self) -> bool:
        """Whether the container still runs."""
        return self.process.poll() is None

    def log(self) -> str:
        """The job's output, or the console if the job never began."""
        return tail(self.folder / "job" / "log") or tail(self.folder / "console")

    def stop(self) -> None:
        """Kill it, remove its cgroup and its files."""
        mount = space.cgroup2_mount()
        if mount is not None:
            space.end_tree(mount / self.cgroup)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
