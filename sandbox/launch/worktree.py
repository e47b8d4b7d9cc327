"""A worktree of the task's own: planned before the run is made, made after its intent is on the disk.

The intent names path and branch, so that one that a crash left half made is known. A stop or a signal to end ends
the making, too. Not imported by a run without --worktree.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from sandbox.control.status import status
from sandbox.errors import AgentboxError, Refused, warn
from sandbox.kernel.spawn import Step
from sandbox.launch.command import require_command
from sandbox.launch.signals import urgent
from sandbox.launch.spec import LaunchSpec
from sandbox.manifest.home import Home
from sandbox.manifest.writer import Writer
from sandbox.worktree import create


def planned(spec: LaunchSpec, home: Home) -> LaunchSpec:
    """The spec with its worktree planned. Raises AgentboxError where git would refuse it; nothing is changed."""

    def state_of(run_id: str) -> str:
        return status(home, run_id).state if os.path.isdir(home.run_dir(run_id).path) else "not known here"

    tree = create.plan(spec.cwd, spec.run_id, spec.task_id, spec.base, state_of)
    container = {**spec.container, "cwd": tree.path} if spec.image else spec.container
    return replace(spec, tree=tree, container=container)


def make(spec: LaunchSpec, writer: Writer, may_start: Callable[[], object]) -> Step:
    """Make it, and return the step by which the child goes there. Raises AgentboxError with nothing of it left."""
    assert spec.tree is not None

    def stop() -> bool:
        try:
            may_start()
        except Refused:
            return True
        return urgent()

    notes = create.make(spec.tree, stop)
    path = spec.tree.path
    try:
        for note in notes:
            writer.append("note", task_id=spec.task_id, text=f"worktree {path}: {note}")
            warn(f"worktree {path}: {note}")
        if not spec.image and b"/" in spec.argv[0]:
            require_command(spec, {}, path)
    except AgentboxError:
        undo(spec, writer)
        raise
    return ("go to the worktree", lambda: os.chdir(path))


def undo(spec: LaunchSpec, writer: Writer) -> None:
    """Take it back after a start that failed: nothing ran in it. What is left of it is recorded."""
    assert spec.tree is not None
    try:
        left = create.undo(spec.tree)
        if left:
            writer.append("note", task_id=spec.task_id, text=f"after the failed start: {left}")
    except AgentboxError as error:
        warn(f"the worktree {spec.tree.path} of a task that was not started is left: {error}")
