"""What a bed is to the plugin: a place that runs a list of tests in one pytest and hands back its reports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.beds import space

TREE = Path(__file__).resolve().parents[2]
INSIDE = Path("/testbed")  # in a bed: tree/ is the project, site/ its environment, job/ what to run
SCRATCH = Path("/var/tmp")  # a real disk: /tmp is memory on many machines
CI = os.environ.get("CI") == "true"

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info"
)


@dataclass
class Job:
    """One pytest inside a bed. `items`: node ids; `options`: the host's pytest's that count inside."""

    bed: str
    items: list[str]
    options: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    tree: Path = INSIDE / "tree"
    python: str = "/usr/bin/python3"

    def write(self, folder: Path) -> None:
        """Lay `folder` out as the bed's job folder: `run` (sh) and `items.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted({item.split("::", 1)[0] for item in self.items})
        (folder / "items.json").write_text(json.dumps({"files": files, "items": self.items}))
        lines = [f"export {key}={_quoted(value)}" for key, value in self.env.items()]
        pytest = [
            f"exec {self.python} -m pytest -p no:cacheprovider -p tests.beds.inner",
            f"--continue-on-collection-errors --bed={self.bed}",
            *map(_quoted, self.options),
            *map(_quoted, files),
        ]
        script = "\n".join(["#!/bin/sh", *lines, f"cd {self.tree} || exit 1", " ".join(pytest)])
        (folder / "run").write_text(script + "\n")
        (folder / "run").chmod(0o755)


class Running(Protocol):
    """A started bed."""

    reports: Path
    """JSON lines from the inner pytest; may not exist yet."""

    def alive(self) -> bool:
        """Whether reports can still come."""

    def stop(self) -> None:
        """End it whole; may be called again."""

    def log(self) -> str:
        """What the bed printed, for the reader of a failure."""


class Bed(Protocol):
    """A kind of machine."""

    name: str

    def missing(self) -> str | None:
        """Why this machine cannot have the bed, or None."""

    def start(self, job: Job) -> Running:
        """Boot it and begin the job; any exception is a failed boot."""


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def missing_tools(tools: Iterable[str], packages: str) -> str | None:
    """The reason if a command is not on PATH (or we are not root), with the packages that bring them."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in tools if shutil.which(tool) is None]
    return f"{', '.join(absent)} not installed (apt-get install {packages})" if absent else None


def cache_dir() -> Path:
    """Where built roots are kept between sessions, outside the tree."""
    if os.geteuid() == 0:
        return Path("/var/cache/agentbox-launcher")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentbox-launcher"


def scratch(what: str) -> Path:
    """A new folder for one bed, on a real disk."""
    return Path(tempfile.mkdtemp(prefix=f"testbed.{space.owner()}.{what}-", dir=SCRATCH))


def sweep(owner: str | None = None) -> None:
    """Remove what test sessions that were killed have left: cgroups and folders that carry their owner's name.

    `owner`: only that session's, which has ended.
    """
    mount = space.cgroup2_mount()
    pattern = f"{space.PREFIX}.{owner or '*.*'}.*"
    for path in mount.glob(pattern) if mount else ():
        if owner or not space.owner_lives(path.name):
            space.end_tree(path)
    for path in SCRATCH.glob(pattern):
        if owner or not space.owner_lives(path.name):
            for container in path.glob("data/containers/*") if mount else ():  # those of a private dockerd
                space.end_tree(mount / "docker" / container.name)
            shutil.rmtree(path, ignore_errors=True)


def site_packages() -> Path:
    """The environment of the running interpreter, with pytest and the project's dependencies in it."""
    return Path(sysconfig.get_path("purelib"))


def copy_tree(target: Path) -> None:
    """A copy of the project as it is now, readable by all, compiled, with no way back to the original."""
    shutil.copytree(TREE, target, ignore=_LEFT_OUT, symlinks=True)
    subprocess.run(["chmod", "-R", "u+w,a+rX", str(target)], check=True)
    compiler = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*compiler, str(target)], check=False)


def tail(path: Path, lines: int = 60) -> str:
    """The last lines of a log without blank ones and a terminal's escapes, "" if there is none."""
    try:
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", path.read_text(errors="replace"))
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def wait_until(done: Callable[[], bool], timeout: float, what: str) -> None:
    """Poll `done`; TimeoutError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.02)
