"""Which run is meant: an exact id, or a unique prefix of one that exists in the record or in the kernel."""

from __future__ import annotations

from collections.abc import Iterable

from sandbox.boxes.base import Unavailable
from sandbox.boxes.registry import local_backends
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.manifest.ids import select


def known_runs(home: Home) -> list[str]:
    """Runs with a directory, and runs with a live box whose directory is gone: both can be stopped."""
    found = dict.fromkeys(home.runs())
    for one in local_backends(home.path):
        try:
            found.update(dict.fromkeys(box.run_id for box in one.list()))
        except Unavailable:
            continue
    return sorted(found)


def select_run(home: Home, text: str) -> str:
    """The run's id. Raises AgentboxError (2: no id, or ambiguous; 3: no such run)."""
    recorded = home.runs()
    if text in recorded:
        return text
    try:
        return select(text, recorded)
    except AgentboxError as error:
        if error.code != 3:
            raise
    return select(text, known_runs(home))


def existing_run(home: Home, text: str) -> str:
    """A run that a task can be started in: it needs its record."""
    return select(text, home.runs())


def select_runs(home: Home, texts: Iterable[str]) -> list[str]:
    """Each once, in the order given."""
    return list(dict.fromkeys(select_run(home, text) for text in texts))


def run_backend(home: Home, run_id: str) -> str:
    """The backend that the run was started with, or auto where the record does not tell."""
    from sandbox.control.status import load

    run, _ = load(home, run_id)
    return run.backend or "auto"
