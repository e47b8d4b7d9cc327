"""Which run is meant: an exact id, or a unique prefix of one that exists in the record or in the kernel."""

from __future__ import annotations

from sandbox.boxes.base import Unavailable
from sandbox.boxes.registry import local_backends
from sandbox.errors import NO_SUCH_RUN, AgentboxError, Refused
from sandbox.manifest.home import Home
from sandbox.manifest.ids import select


def known_runs(home: Home, unseen: list[str] | None = None) -> list[str]:
    """Runs with a directory, and runs with a live box whose directory is gone: both can be stopped."""
    return sorted({*home.runs(), *boxed_runs(home, unseen)})


def boxed_runs(home: Home, unseen: list[str] | None = None) -> set[str]:
    """Runs with a box that can be seen. Why a backend could not be looked at goes to `unseen`, each reason once."""
    found: set[str] = set()
    for one in local_backends(home.path):
        try:
            found.update(box.run_id for box in one.list())
        except Unavailable as error:
            if unseen is not None and str(error) not in unseen:
                unseen.append(str(error))
    return found


def select_run(home: Home, text: str) -> str:
    """The run's id. Raises AgentboxError (2: no id, or ambiguous; 3: no such run)."""
    recorded, unreadable = _recorded(home)
    try:
        return select(text, recorded)
    except AgentboxError as error:
        if error.code != NO_SUCH_RUN:
            raise
    try:
        return select(text, {*recorded, *boxed_runs(home)})
    except AgentboxError as error:
        raise unreadable if unreadable and error.code == NO_SUCH_RUN else error from None


def _recorded(home: Home) -> tuple[list[str], AgentboxError | None]:
    """The runs of the record; where that can't be read, none and why: what lives can be stopped all the same."""
    try:
        return home.runs(), None
    except AgentboxError as error:
        return [], error


def existing_run(home: Home, text: str) -> str:
    """A run that a task can be started in: it needs its record."""
    return select(text, home.runs())


def run_backend(home: Home, run_id: str) -> str:
    """The backend that the run was started with, or auto where the record does not tell.

    Raises Refused where the record says that the run was stopped or is over, whatever its control file says by now:
    who writes that by hand lifts no stop.
    """
    from sandbox.control.status import load, over_by_record

    try:
        run, _ = load(home, run_id)
    except AgentboxError:
        return "auto"  # a stop that stands is the better answer, and without a record nothing starts anyway
    if why := over_by_record(run):
        from sandbox.launch.start import may_start

        may_start(home, home.run_dir(run_id))  # an order that stands is the better answer
        raise Refused(f"run {run_id} {why}, whatever its control file says", fix="start a new run")
    return run.backend or "auto"
