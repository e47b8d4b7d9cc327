"""The real omp: npm packages of pinned versions, installed once into the cache that the beds use."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.beds.base import cache_dir
from tests.beds.root import building, run

OMP = "18.2.3"
BUN = "1.4.4"


def missing() -> str | None:
    """Why omp cannot be had on this machine, or None."""
    absent = [tool for tool in ("npm", "node") if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not installed (apt-get install npm)" if absent else None


def omp() -> Path:
    """The folder with the commands `omp` and `bun`. RuntimeError with npm's last lines if it can't be installed."""
    target = cache_dir() / f"omp-{OMP}-bun-{BUN}"
    with building(target) as wanted:
        if wanted:
            wanted.mkdir()
            names = [f"bun@{BUN}", f"@oh-my-pi/pi-coding-agent@{OMP}"]
            run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"--prefix={wanted}", *names])
    return target / "node_modules" / ".bin"
