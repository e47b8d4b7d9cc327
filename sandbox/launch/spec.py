"""What is to be launched: one task of a new run or of one that exists."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.boxes.base import Limits
from sandbox.launch.output import LIMIT

if TYPE_CHECKING:
    from sandbox.worktree.create import Plan

MAIN = "main"
"""The agent's own task, if it is given no other id."""


@dataclass(frozen=True)
class LaunchSpec:
    """`timeout` in seconds. `env`: what `--env` adds. `cwd`: None where the working directory was deleted.

    `new_run`: make the run, whose main task this is; otherwise the task joins it. `on_exit`: `kill` ends what
    is left when the command has ended, `leave` keeps it. `worktree`: the task gets one of its own, from `base`
    (None: HEAD); `tree` is where, once that is known. `harness`: whose hooks are on the command line. `allowance`:
    seconds that may pass between two boundaries. `output_limit`: bytes kept of a detached task's output, 0 for all.
    `own_dirs`: a new run gets folders of its own (launch.own_dirs).
    """

    run_id: str
    task_id: str
    argv: Sequence[bytes]
    new_run: bool = True
    backend: str = "auto"
    image: str | None = None
    detach: bool = False
    env: Mapping[bytes, bytes] = field(default_factory=dict)
    cwd: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    timeout: float | None = None
    allowance: float | None = None
    on_exit: str = "kill"
    container: Mapping[str, Any] = field(default_factory=dict)
    worktree: bool = False
    base: str | None = None
    tree: Plan | None = None
    harness: str | None = None
    output_limit: int = LIMIT
    own_dirs: bool = False

    @property
    def name(self) -> str:
        """The command's own name for an error line: quoted, and short."""
        text = repr(os.fsdecode(self.argv[0]))
        return text if len(text) <= 100 else f"{text[:96]}...{text[-1]}"

    @property
    def shown_argv(self) -> list[str]:
        """The command for the record; bytes that are no UTF-8 as surrogates (PEP 383)."""
        return [word.decode("utf-8", "surrogateescape") for word in self.argv]
