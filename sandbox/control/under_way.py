"""One redirect of a run at a time, and no new task meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.control import orders
from sandbox.errors import AgentboxError, Refused
from sandbox.manifest.home import RunDir


@contextmanager
def under_way(run: RunDir) -> Iterator[None]:
    """One redirect at a time, and no new task meanwhile (flock on the steer directory)."""
    try:
        with orders.locked(os.path.dirname(run.steer("x")), seconds=0.0):
            yield
    except AgentboxError as error:
        if "is locked" in error.what:
            raise Refused(f"a redirect of run {run.run_id} is under way", fix="wait for it, then try again") from None
        raise


def is_under_way(run: RunDir) -> bool:
    try:
        with orders.locked(os.path.dirname(run.steer("x")), seconds=0.0):
            return False
    except AgentboxError:
        return True
    except OSError:
        return False
