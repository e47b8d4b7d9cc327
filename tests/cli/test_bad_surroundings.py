"""A machine on which agentbox can't do what it is asked: one line with the repair, the documented status.

A table of surroundings, each a way to start agentbox, and of verbs; what is not in a surrounding's own
expectations must work there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.beds.base import TREE
from tests.cli.runs import Done, no_runs_left, one_line, pids_of, row, start
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive

VERBS = {
    "run": ("run", "--", "true"),
    "run-d": ("run", "-d", "--", "true"),
    "kill": ("kill", "nosuch"),
    "kill-all": ("kill", "--all"),
    "abort": ("abort", "nosuch"),
    "ps": ("ps",),
    "ps-json": ("ps", "--json"),
    "inspect": ("inspect", "nosuch"),
    "tree": ("tree", "nosuch"),
    "logs": ("logs", "nosuch"),
    "wait": ("wait", "nosuch"),
    "manifest": ("manifest",),
    "verify": ("verify", "nosuch"),
    "spawn": ("spawn", "nosuch", "--", "true"),
}
UNKNOWN = {"kill": 3, "abort": 3, "inspect": 3, "tree": 3, "logs": 3, "wait": 125, "verify": 3, "spawn": 125}
ALL = tuple(VERBS)
STARTING = ("run", "run-d")


@dataclass(frozen=True)
class Surrounding:
    """`prefix` goes before agentbox's argv, with `{}` for the test's folder; `env` over its environment.

    `fails`: the verbs that can't work there; `words`: what their line holds; `code`: their status where it is
    not that of agentbox's own failure (125, 1 of a stop, 2 else).
    """

    name: str
    prefix: str = ""
    env: dict[str, str] = field(default_factory=dict)
    fails: tuple[str, ...] = ALL
    words: tuple[str, ...] = ()
    code: int | None = None

    def status(self, verb: str) -> int:
        if verb not in self.fails:
            return UNKNOWN.get(verb, 0)
        if self.code is not None:
            return self.code
        return 125 if verb in ("run", "run-d", "spawn", "wait") else 1 if verb in ("kill", "kill-all", "abort") else 2


IN_MOUNTS = "unshare -m sh -c 'mount --make-rprivate / && {script} && exec \"$@\"' sh"
CG = "$(awk '$9 == \"cgroup2\" || $8 == \"cgroup2\" {{print $5}}' /proc/self/mountinfo | head -n 1)"

SURROUNDINGS = [
    Surrounding("home-is-a-file", "touch {}/f;", {"AGENTBOX_HOME": "{}/f"}, words=("{}/f", "AGENTBOX_HOME")),
    Surrounding("home-below-a-file", "touch {}/f;", {"AGENTBOX_HOME": "{}/f/h"}, words=("{}/f/h", "AGENTBOX_HOME")),
    Surrounding("home-relative", env={"AGENTBOX_HOME": "h"}, words=("AGENTBOX_HOME", "absolute")),
    Surrounding(
        "home-for-all-to-write",
        "mkdir {}/h; chmod 777 {}/h;",
        {"AGENTBOX_HOME": "{}/h"},
        STARTING,
        ("{}/h", "chmod go-w"),
    ),
    Surrounding("no-cgroup2", IN_MOUNTS.format(script="umount -l /sys/fs/cgroup"), {}, STARTING, ("mount -t cgroup2",)),
]
