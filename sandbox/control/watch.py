"""The watch: enforces an emergency stop that anybody made by any means, and carries out orders written by hand.

inotify(7) wakes it; once a second it looks by itself too, for what makes no event (a mount, a network file
system). While the emergency stop is on it keeps looking for what lives.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sandbox.boxes.base import Backend
from sandbox.boxes.registry import local_backends
from sandbox.control import emergency_file
from sandbox.control.emergency import Emergency, emergency_stop, living
from sandbox.control.notify import notify, watchdog_seconds
from sandbox.control.request import Act, carry_out, target_of
from sandbox.control.status import status
from sandbox.control.stop import Stop
from sandbox.control.targets import Target
from sandbox.control.watch_places import Key, Places, all_orders
from sandbox.errors import NOT_PROVEN, NOT_RECORDED, PROVEN_EMPTY, AgentboxError, number_of
from sandbox.kernel.background import Background
from sandbox.manifest.home import Home

if TYPE_CHECKING:
    from loguru import Logger

LOOK_SECONDS = 1.0
TURN_SECONDS = 0.1
"""Between two looks where inotify is not to be had."""
RETRY_SECONDS = 15.0
"""Between two tries at what could not be proven dead while the emergency stop is on."""
SIZE_MAX = 4096


class Watch:
    """`act`: what an order written by hand does to its run. `until_lifted`: end when the emergency stop is off."""

    def __init__(self, home: Home, act: Act, log: Logger, *, until_lifted: bool = False) -> None:
        self.home = home
        self.act = act
        self.log = log
        self.until_lifted = until_lifted
        self.backends: list[Backend] = local_backends(home.path)
        self.on = False
        self.unproven: set[str] = set()
        self.try_again: float | None = None
        self.taken: set[tuple[Key, int, int]] = set()
        self.busy: set[Key] = set()
        self.blind = ""
        self.next_alarm = 0.0
        self.degraded = ""

    def run(self, ended: int) -> None:
        """Watch until the descriptor `ended` can be read, or the stop is lifted and that is waited for."""
        places = Places(self.home, self.log.warning)
        poll = select.poll()
        for fd in (ended, places.fd):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        keys = places.sync()
        self.look()
        self._say("READY=1\n")
        while self.on or not self.until_lifted:
            self._take(keys, places)
            self._feed_watchdog()
            pause = TURN_SECONDS if places.degraded else LOOK_SECONDS
            if ended in [fd for fd, _ in poll.poll(pause * 1000)]:
                break
            # The emergency stop before all that the events may mean besides, and again after: they may mean the home.
            self.look()
            keys = places.sync() if places.moved() else places.news()
            self.look()
            if places.degraded:
                keys |= all_orders(self.home)
            if places.degraded != self.degraded:
                self.degraded = places.degraded
                self._say()
        notify("STOPPING=1")

    def _feed_watchdog(self) -> None:
        if time.monotonic() >= self.next_alarm:
            notify("WATCHDOG=1")
            self.next_alarm = time.monotonic() + (watchdog_seconds() or 60.0) / 3

    def once(self) -> int:
        """Look once: enforce, carry out what is written, return the exit status of `estop`."""
        codes = []
        standing = emergency_file.look(self.home)
        if standing.on:
            self.on = True  # not news, then: cron asks every minute, and what is printed there is mail
            codes.append(self._enforce(standing).code)
        for key in sorted(all_orders(self.home), key=str):
            codes += [_code(stop) for stop in self._carry_out(key)] if self._is_new(key) else []
        return next((code for code in (NOT_PROVEN, NOT_RECORDED) if code in codes), PROVEN_EMPTY)

    # the emergency stop

    def look(self) -> None:
        """Is the emergency stop on? Then nothing may live."""
        standing = emergency_file.look(self.home)
        if standing.on is None:
            if standing.why != self.blind:
                self.log.error(standing.why)
            self.blind = standing.why
            return
        self.blind = ""
        if not standing.on:
            if self.on:
                self.log.info("the emergency stop was lifted")
                self.on = False
                self._say()
            return
        due = self.try_again is not None and time.monotonic() >= self.try_again
        if not self.on or due or living(self.backends) - self.unproven:
            self._enforce(standing)

    def _enforce(self, standing: emergency_file.Standing) -> Emergency:
        done = emergency_stop(self.home, standing.reason or f"{standing.path} exists", standing.by, make_file=False)
        if not self.on or done.stops:
            self.log.warning(f"emergency stop by {standing.by}: {standing.reason or 'no reason given'}")
        self.on = True
        self.unproven = {stop.run_id for stop in done.stops if stop.proof != "empty"}
        self.try_again = time.monotonic() + RETRY_SECONDS if done.proof != "empty" else None
        for stop in done.stops:
            self._tell(stop)
        for line in (*done.unreachable, *filter(None, [done.problem])):
            self.log.error(line)
        self._say()
        return done

    # orders written by hand

    def _take(self, keys: set[Key], places: Places) -> None:
        for key in sorted(keys, key=str):
            if self._is_new(key):
                _in_background(partial(self._carry_out, key))
            places.forget(key[0])

    def _path(self, key: Key) -> str:
        run_id, task_id = key
        run = self.home.run_dir(run_id)
        return run.control if task_id is None else run.task_order(task_id)

    def _is_new(self, key: Key) -> bool:
        """Was STOP written there by hand, and has that not been taken up?"""
        found = written_by_hand(self._path(key))
        if found is None or key in self.busy or (key, *found) in self.taken:
            return False
        self.busy.add(key)
        self.taken.add((key, *found))
        return True

    def _carry_out(self, key: Key) -> list[Stop]:
        """Stop the run or task as `kill` or `abort` does; one of no live run is left to lie."""
        run_id, task_id = key
        path = self._path(key)
        try:
            if not status(self.home, run_id).live:
                return []
            self.log.warning(f"run {run_id}: STOP was written by hand into {path}")
            stops = carry_out(self.home, [target_of(self.home, run_id, task_id)], f"written into {path}", self._act)
        except AgentboxError as error:
            self.log.error(f"run {run_id}: {error}")
            return []
        finally:
            self.busy.discard(key)
        for stop in stops:
            self._tell(stop)
        return stops

    def _act(self, target: Target, stop: Stop) -> Stop:
        # The order is in force by the hand that wrote it, but not in the record.
        stop.already = False
        return self.act(target, stop)

    def _tell(self, stop: Stop) -> None:
        what = f"run {stop.run_id}" + (f" task {stop.task_id}" if stop.task_id else "")
        if stop.proof == "empty":
            frozen = f"frozen at {stop.frozen_at}, " if stop.frozen_at else ""
            ended = number_of(len(stop.processes), "process")
            self.log.info(f"{what}: {frozen}empty at {stop.empty_at}, {ended} ended")
        else:
            pids = ", ".join(str(member.pid) for member in stop.survivors) or "none named"
            self.log.error(f"{what}: {stop.proof}; survivors: {pids}")
        for line in stop.warnings:
            self.log.warning(f"{what}: {line}")

    def _say(self, more: str = "") -> None:
        state = "the emergency stop is ON" if self.on else "no emergency stop"
        how = f"; {self.degraded}" if self.degraded else ""
        notify(f"{more}STATUS={state}; {self.home.path}{how}")


def written_by_hand(path: str) -> tuple[int, int] | None:
    """Does a file say STOP in other words than agentbox's own? Its inode and time of writing (ns), or None.

    `STOP` or `STOP 5` on the first line; agentbox adds a line that says by whom.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        lines = os.read(fd, SIZE_MAX).splitlines() if stat.S_ISREG(info.st_mode) else []
    except OSError:
        return None
    finally:
        os.close(fd)
    words = lines[0].split() if lines else []
    if words[:1] != [b"STOP"] or any(line.startswith(b"by: ") and line[4:].strip() for line in lines[1:]):
        return None
    return info.st_ino, info.st_mtime_ns


def _in_background(work: Callable[[], object]) -> None:
    """A stop takes its time; the next emergency must not wait for it."""
    try:
        Background(work)
    except RuntimeError:
        work()


def _code(stop: Stop) -> int:
    if stop.proof != "empty":
        return NOT_PROVEN
    return PROVEN_EMPTY if stop.recorded else NOT_RECORDED
