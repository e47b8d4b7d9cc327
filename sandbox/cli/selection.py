"""Which run is meant: an exact id, or a unique prefix of one that exists in the record or in the kernel."""

from __future__ import annotations

from sandbox.boxes.base import Unavailable
from sandbox.boxes.registry import local_backends
from sandbox.errors import NO_SUCH_RUN, AgentboxError, Refused
from sandbox.manifest.home import Home
from sandbox.manifest.ids import check_id, is_id, select


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
    """The run's id. Raises AgentboxError (2: no id, or ambiguous; 3: no such run).

    What only begins with `text` is meant where no run is called so, also none whose record is gone.
    """
    recorded, unreadable = _recorded(home)
    if text in recorded:
        return text
    check_id(text, "run id")
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
    recorded = home.runs()
    if text in recorded or not is_id(text):
        return select(text, recorded)
    run_id = select(text, {*recorded, *boxed_runs(home)})
    if run_id not in recorded:
        raise AgentboxError(f"the record of run {run_id} is gone", fix=f"agentbox kill {run_id}", code=NO_SUCH_RUN)
    return run_id


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
