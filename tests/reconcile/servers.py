"""Real MCP servers, from npm and PyPI, installed once into the cache."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.beds.base import cache_dir

NPM = {"@modelcontextprotocol/server-memory": "2026.8.31", "@modelcontextprotocol/server-everything": "2026.8.31"}
PYPI = {"mcp-server-time": "2026.10.19"}


def npm_servers() -> Path:
    """A folder with NPM's packages in its node_modules; skips where they cannot be had."""
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("node and npm are not installed (apt-get install nodejs npm)")
    wanted = [f"{name}@{version}" for name, version in NPM.items()]
    install = ["npm", "install", "--no-fund", "--no-audit"]
    return _cached("npm", wanted, lambda folder: [[*install, "--prefix", folder, *wanted]])


def pypi_servers() -> Path:
    """An environment with PYPI's packages in its bin; skips where they cannot be had."""
    wanted = [f"{name}=={version}" for name, version in PYPI.items()]

    def commands(folder: str) -> list[list[str]]:
        install = [f"{folder}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
        return [[sys.executable, "-m", "venv", folder], install]

    return _cached("pypi", wanted, commands)


def _cached(kind: str, wanted: list[str], commands: Callable[[str], list[list[str]]]) -> Path:
    key = "-".join(sorted(one.replace("/", "_") for one in wanted))
    folder = cache_dir() / f"mcp-{kind}-{key}"
    if (folder / "ready").exists():
        return folder
    with _locked(folder.with_suffix(".lock")):
        if (folder / "ready").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in commands(str(folder)):
            done = subprocess.run(command, capture_output=True, text=True, timeout=280)
            if done.returncode != 0:
                pytest.skip(f"{' '.join(wanted)} cannot be installed: {done.stderr.strip()[-300:]}")
        (folder / "ready").touch()
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
