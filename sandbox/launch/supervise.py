"""Wait for the command in the foreground as if the launcher were not there.

The command is a child in the launcher's own session and process group with the launcher's own stdio, so what
the terminal sends reaches it without help. What only the launcher is sent goes on to it here; when it stops,
the launcher stops too, so that the shell takes over. signal(7), waitid(2), credentials(7), setpgid(2).

What this cannot hide: a signal sent by kill(2) to the whole process group reaches the command twice (once
from the launcher); SIGSTOP to the launcher alone stops only the launcher; a launcher that has stopped with
its command does not see that somebody continued the command alone, and goes on at the shell's `fg` or `bg`,
as does its deadline.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from sandbox.errors import TIMED_OUT, AgentboxError
from sandbox.launch.signals import HEARD, STOPS, Dispositions, end_by
from sandbox.launch.terminal import Terminal

HANG_UP_GRACE = 3.0  # seconds for the command to end by itself when its terminal has gone
_HUNG_UP = 128 + int(signal.SIGHUP)
_SI_KERNEL = 0x80  # sigaction(2): sent by the kernel; kill(2), tgkill(2), sigqueue(3) give 0 and less
_AT_ONCE = 256  # signals read before the child is looked at again, so that a flood cannot hide its end

# Those that the kernel sends to a terminal's whole foreground group: a command in our group has them already.
_OF_TERMINAL = frozenset(
    int(s) for s in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
)
_BACKGROUND = frozenset((int(signal.SIGTTIN), int(signal.SIGTTOU)))


@dataclass(frozen=True, slots=True)
class Ended:
    """How the wait ended.

    code: what the launcher is to exit with: the command's own, 128+N for signal N, 124 if `timed_out`, 129 if
    `hung_up`. signal: what the command died of, else None. core: whether it dumped core.
    timed_out, hung_up: the command is still alive, and the caller has to end it.
    interrupted: it died of the terminal's own Ctrl+C or Ctrl+\\; see `exit_as`.
    """

    code: int
    signal: int | None = None
    core: bool = False
    timed_out: bool = False
    hung_up: bool = False
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened during the wait.

    kind: `signal` (the launcher got one; `sent`: whether it was passed on to the command), `stopped` and
    `continued` (the command), `children` (SIGCHLD: a child, perhaps not the command, changed its state),
    `hangup` (the terminal is gone and the command lives on), `timeout`. number: the signal, or 0. pid: who
    sent it, or 0 for the kernel.
    """

    kind: str
    number: int = 0
    pid: int = 0
    sent: bool = False


def _no_event(event: Event) -> None:
    return


def supervise(
    child_pid: int,
    *,
    dispositions: Dispositions,
    deadline: float | None = None,
    on_event: Callable[[Event], None] = _no_event,
    terminal: Terminal | None = None,
    at_intervals: Callable[[], float | None] | None = None,
) -> Ended:
    """Wait for `child_pid` to end, and reap it and no other child. It was forked after `block()`.

    deadline: when to give up, in time.monotonic() seconds. terminal: as saved before the fork; saved here if
    None. at_intervals: called again and again; gives the seconds until its next time, None for never. All
    signals stay blocked when this returns. Raises AgentboxError if somebody else reaped the child.
    """
    return _Wait(child_pid, dispositions, deadline, on_event, terminal or Terminal.save(), at_intervals).run()


def reap(child_pid: int, *, deadline: float | None) -> Ended | None:
    """Wait for the end of a child that supervise left alive, until `deadline` (monotonic; None: for ever).

    None if it is still alive then. Signals are not read, and stay pending for `signals.urgent`.
    """
    while (ended := _status(child_pid)) is None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is None:
            signal.sigwaitinfo({signal.SIGCHLD})
        elif left <= 0 or signal.sigtimedwait({signal.SIGCHLD}, left) is None:
            return _status(child_pid)
    return ended


def exit_as(ended: Ended) -> NoReturn:
    """End the launcher with `ended.code`, or by the Ctrl+C or Ctrl+\\ of the terminal that ended the command.

    A shell stops its script only if it sees the death by SIGINT; `$?` is 128+N either way. Nothing is
    flushed, and no exit handler runs.
    """
    if ended.interrupted and ended.signal is not None:
        end_by(ended.signal)
    os._exit(ended.code)


def _status(child: int) -> Ended | None:
    """Reap the child if it is dead. None if it is not."""
    try:
        found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        what = f"the exit status of process {child} is lost: something else waited for it"
        raise AgentboxError(what) from None
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return Ended(found.si_status)
    return Ended(128 + found.si_status, found.si_status, core=found.si_code == os.CLD_DUMPED)


class _Wait:
    """The state of one wait."""

    def __init__(
        self,
        child: int,
        dispositions: Dispositions,
        deadline: float | None,
        on_event: Callable[[Event], None],
        terminal: Terminal,
        at_intervals: Callable[[], float | None] | None,
    ) -> None:
        self.child = child
        self.hang_up_ignored = int(signal.SIGHUP) in dispositions.ignored
        self.deadline = deadline
        self.on_event = on_event
        self.terminal = terminal
        self.at_intervals = at_intervals
        self.hang_up_at: float | None = None
        self.next_at = None if at_intervals is None else time.monotonic()
        self.by_terminal: set[int] = set()
        self.stopped_by = 0  # the signal that holds the child, 0 while it runs, as last reported
        self.new_stop = False  # that stop is still to be looked at
        self.wants_terminal = False

    def run(self) -> Ended:
        while True:
            ended = self._ended()
            if ended is not None:
                return ended
            self._look_at_stop()
            self._do_at_intervals()
            heard = self._hear()
            # SIGCONT first: a stop that a shell has just lifted must not stop the launcher again.
            for info in sorted(heard, key=lambda i: i.si_signo != signal.SIGCONT):
                self._act(info)

    def _ended(self) -> Ended | None:
        ended = _status(self.child)
        if ended is not None:
            return Ended(ended.code, ended.signal, ended.core, interrupted=self._interrupted(ended.signal))
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            self.on_event(Event("timeout"))
            return Ended(TIMED_OUT, timed_out=True)
        if self.hang_up_at is not None and now >= self.hang_up_at:
            self.hang_up_at = None
            if self.terminal.gone():
                self.on_event(Event("hangup"))
                return Ended(_HUNG_UP, hung_up=True)
        return None

    def _interrupted(self, number: int | None) -> bool:
        if number not in (signal.SIGINT, signal.SIGQUIT):
            return False
        info = signal.sigtimedwait({number}, 0)  # the child may have died of it before it came here
        return number in self.by_terminal or (info is not None and info.si_code == _SI_KERNEL)

    def _hear(self) -> list[signal.struct_siginfo]:
        """Wait for signals, at most until the next moment at which there is something to decide."""
        ends = [t for t in (self.deadline, self.hang_up_at, self.next_at) if t is not None]
        if ends:
            first = signal.sigtimedwait(HEARD, max(0.0, min(ends) - time.monotonic()))
        else:
            first = signal.sigwaitinfo(HEARD)
        heard: list[signal.struct_siginfo] = []
        while first is not None and len(heard) < _AT_ONCE:
            heard.append(first)
            first = signal.sigtimedwait(HEARD, 0)
        return heard

    def _do_at_intervals(self) -> None:
        if self.at_intervals is not None and self.next_at is not None and time.monotonic() >= self.next_at:
            pause = self.at_intervals()
            self.next_at = None if pause is None else time.monotonic() + pause

    def _act(self, info: signal.struct_siginfo) -> None:
        number = info.si_signo
        if number == signal.SIGCHLD:
            self.on_event(Event("children", number, info.si_pid))
            return
        if number == signal.SIGCONT:
            self._go_on()
            return
        if number == signal.SIGHUP and not self.hang_up_ignored and self.hang_up_at is None:
            self.hang_up_at = time.monotonic() + HANG_UP_GRACE
        # Ctrl+Z that took back the SIGCONT of `fg` before it was read, and a child that did not get either.
        if number == signal.SIGTSTP and self.stopped_by:
            self.new_stop = True
        kernel = info.si_code == _SI_KERNEL
        if kernel:
            self.by_terminal.add(number)
        sent = self._pass_on(number, kernel=kernel, sender=info.si_pid)
        self.on_event(Event("signal", number, 0 if kernel else info.si_pid, sent))

    def _pass_on(self, number: int, *, kernel: bool, sender: int) -> bool:
        """Send the child a signal, unless it has it already. False if not sent, or the kernel refused."""
        group = self._group()
        if kernel and number in _BACKGROUND:
            return False  # one of our group that is not the command touched the terminal
        if kernel and number in _OF_TERMINAL:
            # At a hang-up the kernel signals the session's leader alone, and else the whole group.
            if group == os.getpgrp() and not (number == signal.SIGHUP and os.getsid(0) == os.getpid()):
                return False
            return self._send(number, -group if group == self.child else self.child)
        # Our own (SIGPIPE of a write), and what the command sent to all its group, as kill(0, SIGTSTP).
        if not kernel and sender in (os.getpid(), self.child):
            return False
        return self._send(number, self.child)

    def _send(self, number: int, target: int) -> bool:
        try:
            os.kill(target, number)
        except OSError:
            return False  # a command that has become another user, or a group that has just ended
        return True

    def _group(self) -> int:
        try:
            return os.getpgid(self.child)
        except OSError:
            return os.getpgrp()

    def _look_at_stop(self) -> None:
        """Follow a child that has stopped, and note one that runs again."""
        self._take_reports()
        if not self.new_stop:
            return
        self.new_stop, held = False, self.stopped_by
        group, ours, front = self._group(), os.getpgrp(), self.terminal.foreground()
        reads = group != ours and held in _BACKGROUND
        if reads and front == ours:
            self._hand_over(group)
            return
        self.wants_terminal = reads or (front == group != ours)
        if self._follows(group != ours):
            _stop_self()

    def _take_reports(self) -> None:
        """Take in how the child stopped and went on since the last call.

        The kernel reports each stop once, so that the next stop is never taken for the last one, nor a SIGCONT
        that is read late for one that came after it.
        """
        options = os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        with suppress(ChildProcessError):  # it has ended
            while (found := os.waitid(os.P_PID, self.child, options)) is not None:
                self.new_stop = found.si_code == os.CLD_STOPPED
                self.stopped_by = found.si_status if self.new_stop else 0
                self.on_event(Event("stopped" if self.new_stop else "continued", self.stopped_by))

    def _follows(self, own_group: bool) -> bool:
        """Whether the launcher stops with the child: if a shell is there that would have seen the child stop.

        SIGSTOP is sent by hand, and by tools that send SIGCONT after; where no job-control shell is our
        parent, nothing would continue the launcher then.
        """
        if not self.terminal.present or self.terminal.gone():
            return False
        if self.stopped_by in STOPS or own_group:
            return True
        parent = os.getppid()
        try:
            return os.getpgid(parent) != os.getpgrp() and os.getsid(parent) == os.getsid(0)
        except OSError:
            return False

    def _go_on(self) -> None:
        """SIGCONT came, of the shell's `fg` or `bg` or a kill(1): the child goes on, with its terminal."""
        front = self.terminal.look()
        self._take_reports()
        held = self.stopped_by != 0 and not self.new_stop
        self.on_event(Event("signal", int(signal.SIGCONT), sent=held))
        group = self._group()
        if held and group == os.getpgrp():
            self._send(signal.SIGCONT, self.child)
        elif held and self.wants_terminal and front == os.getpgrp():
            self._hand_over(group)
        elif held:
            self._send(signal.SIGCONT, -group)

    def _hand_over(self, group: int) -> None:
        self.wants_terminal = False
        self.terminal.give(group)
        self._send(signal.SIGCONT, -group)


def _stop_self() -> None:
    """Stop this process alone, until SIGCONT. In an orphaned process group the kernel discards it.

    Sent while blocked, it joins a Ctrl+Z that is still pending; so there is one stop, not two.
    """
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
