"""Which directories a watch looks at, and what their events mean.

The home comes first and its watch is the one that must hold; a home that is not there yet is waited for in the
nearest directory that is. Where inotify gives no (more) watches, what is not watched is looked at in turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sandbox.control import orders
from sandbox.errors import AgentboxError
from sandbox.kernel import inotify
from sandbox.kernel.inotify import Inotify, limit_reached
from sandbox.manifest.home import Home
from sandbox.manifest.ids import is_id

Key = tuple[str, str | None]
"""A run's control file, or a task's order: run id, task id."""

_NAMES = inotify.CREATE | inotify.MOVED_TO
_ORDERS = _NAMES | inotify.MODIFY | inotify.CLOSE_WRITE
_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF


class Places:
    """The watched directories. `degraded`: why some can only be looked at in turns, or ""."""

    def __init__(self, home: Home, warn: Callable[[str], None]) -> None:
        self.home = home
        self.runs = os.path.join(home.path, "runs")
        self.degraded = ""
        self._warn = warn
        self._warned = ""
        self._seen: tuple[int, int] | None = None
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
        except OSError as error:
            self._degrade(error)

    @property
    def fd(self) -> int | None:
        """Readable when there is news; None where inotify can't be had."""
        return self._inotify.fd if self._inotify else None

    def _degrade(self, error: OSError) -> None:
        self.degraded = limit_reached(error) or f"inotify does not work here: {error.strerror}"
        if self.degraded != self._warned:
            self._warn(f"{self.degraded}; what cannot be watched is looked at in turns")
        self._warned = self.degraded

    def _watch(self, path: str, mask: int) -> bool:
        """False where the directory is not there (yet)."""
        if self._inotify is None:
            return os.path.isdir(path)
        try:
            self._inotify.watch(path, mask | _SELF)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            self._degrade(error)
            return os.path.isdir(path)
        return True

    def moved(self) -> bool:
        """Is the home another directory than the one that is watched? A mount over it makes no event."""
        return self._identity() != self._seen

    def _identity(self) -> tuple[int, int] | None:
        try:
            info = os.stat(self.home.path)
        except OSError:
            return None
        return info.st_dev, info.st_ino

    def sync(self) -> set[Key]:
        """Watch all that is there now; returns every order that may have been written unseen."""
        self._seen = self._identity()
        self.degraded = "" if self._inotify else self.degraded
        if self._watch(self.home.path, _NAMES):
            self._unwatch(os.path.dirname(self.home.path))
        else:
            self._await_home()
        if not self._watch(self.runs, _NAMES):
            return set()
        found: set[Key] = set()
        for run_id in _runs(self.home):
            found |= self.add_run(run_id)
        return found

    def _await_home(self) -> None:
        """Watch from the nearest directory that is there down to the home, whatever is made meanwhile."""
        path, missing = self.home.path, []
        while not self._watch(path, _NAMES) and path != "/":
            missing.append(path)
            path = os.path.dirname(path)
        while missing and self._watch(missing[-1], _NAMES):
            self._unwatch(path)
            path = missing.pop()

    def _unwatch(self, *paths: str) -> None:
        for path in paths:
            if self._inotify:
                self._inotify.unwatch(path)

    def add_run(self, run_id: str) -> set[Key]:
        """Watch a run's orders, unless it was ended by a stop of agentbox's; returns those there now."""
        run = self.home.run_dir(run_id)
        if is_final(run.control):
            self._unwatch_run(run_id)
            return set()
        # Its directories come one after the other: each is watched before the next is looked for.
        if not self._watch(run.ctl, _ORDERS) and not (self._watch(run.path, _NAMES) and self._watch(run.ctl, _ORDERS)):
            return set()
        self._watch(f"{run.ctl}/tasks", _ORDERS)
        return {(run_id, None), *((run_id, task) for task in _names(f"{run.ctl}/tasks"))}

    def _unwatch_run(self, run_id: str) -> None:
        run = self.home.run_dir(run_id)
        self._unwatch(run.path, run.ctl, f"{run.ctl}/tasks")

    def news(self) -> set[Key]:
        """What the events since the last call say was written; directories that came are watched from now on."""
        events = self._inotify.read() if self._inotify else []
        lost = inotify.GONE | inotify.Q_OVERFLOW
        if any(event.mask & lost and not self._of_a_run(event.path) for event in events):
            return self.sync()
        found: set[Key] = set()
        for event in events:
            found |= self._mean(event)
        return found

    def _of_a_run(self, path: str) -> bool:
        return path.startswith(self.runs + "/")

    def _mean(self, event: inotify.Event) -> set[Key]:
        if event.path == self.runs:
            return self.add_run(event.name) if is_id(event.name) else set()
        if not self._of_a_run(event.path):
            # The home, or a directory above it: something of the way down to the runs may have come.
            on_the_way = (self.runs + "/").startswith(os.path.join(event.path, event.name) + "/")
            return self.sync() if event.name and on_the_way else set()
        run_id, _, rest = event.path[len(self.runs) + 1 :].partition("/")
        if not is_id(run_id):
            return set()
        if rest == "ctl" and event.name == "control":
            return {(run_id, None)}
        if rest == "ctl/tasks":
            return {(run_id, event.name)} if is_id(event.name) else set()
        return self.add_run(run_id) if event.name in ("ctl", "tasks") else set()

    def forget(self, run_id: str) -> None:
        """A stop has been ordered: nothing written here can change it any more."""
        if is_final(self.home.run_dir(run_id).control):
            self._unwatch_run(run_id)


def all_orders(home: Home) -> set[Key]:
    """Every order of every run that no stop of agentbox's has ended."""
    found: set[Key] = set()
    for run_id in _runs(home):
        run = home.run_dir(run_id)
        if not is_final(run.control):
            found |= {(run_id, None), *((run_id, task) for task in _names(f"{run.ctl}/tasks"))}
    return found


def is_final(path: str) -> bool:
    """Does a STOP stand there that agentbox wrote itself, and so carries out itself?"""
    order = orders.read_order(path)
    return order.word == "STOP" and order.trusted and bool(order.by)


def _runs(home: Home) -> list[str]:
    try:
        return home.runs()
    except AgentboxError:
        return []


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if is_id(name)]
    except OSError:
        return []
