"""Helpers of the tests: run agentbox as a person would, wait for a condition, look at a process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.beds.base import TREE
from tests.beds.space import is_alive as is_alive

T = TypeVar("T")


def wait_for(predicate: Callable[[], T], timeout: float = 10, what: str = "") -> T:
    """Poll until `predicate()` is true, give its value; AssertionError with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what or predicate}: not within {timeout:g} s")
        time.sleep(0.01)
    return value


def agentbox_argv(*args: str) -> list[str]:
    """The command line of agentbox under the interpreter that runs the tests."""
    return [sys.executable, "-m", "sandbox.cli.main", *args]


def agentbox_env(home: Path | None = None, **extra: str) -> dict[str, str]:
    """The environment for `agentbox_argv`: the test's own, with AGENTBOX_HOME at `home`, plus `extra`."""
    env = {**os.environ, **extra}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TREE), os.environ.get("PYTHONPATH")]))
    if home is not None:
        env["AGENTBOX_HOME"] = str(home)
    return env


def agentbox(
    *args: str,
    home: Path | None = None,
    check: int | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run agentbox to its end and give its status and output; `check`: the exit status that must come.

    AGENTBOX_HOME is `home`, or what the test's environment says (the fixture `home` sets it). Without `stdin`
    it reads an empty one.
    """
    done = subprocess.run(
        agentbox_argv(*args),
        capture_output=True,
        text=True,
        env=agentbox_env(home, **(env or {})),
        cwd=cwd,
        timeout=timeout,
        input=stdin if stdin is not None else "",
    )
    if check is not None:
        assert done.returncode == check, (args, done.returncode, done.stdout, done.stderr)
    return done
