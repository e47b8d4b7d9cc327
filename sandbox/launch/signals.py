"""What a process inherited about signals, and how the launcher takes and the command gets it back.

signal(7), sigprocmask(2), sigwaitinfo(2). Nothing here starts a thread or installs a Python handler: the
launcher blocks every signal that it wants to hear of and reads them one by one, so none can interrupt a step
of a stop.
"""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from typing import NoReturn

# A fault of the launcher's own code must end it at once, and these two cannot be caught.
_NOT_BLOCKED = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGABRT,
    }
)
HEARD = frozenset(int(s) for s in signal.valid_signals() if s not in _NOT_BLOCKED)
"""The signals that the launcher blocks and reads with sigtimedwait."""

URGENT = frozenset(int(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP))
"""The signals by which a person or a manager asks for an end."""

STOPS = frozenset(int(s) for s in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU))
"""The stop signals of the terminal; unlike SIGSTOP the kernel discards them in an orphaned process group."""

# The interpreter itself ignores these two at its start, so what was inherited cannot be told any more.
_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})


@dataclass(frozen=True, slots=True)
class Dispositions:
    """The signals ignored and the signals blocked when this process started.

    SIGPIPE and SIGXFSZ count as not ignored: Python sets both to SIG_IGN before any code of ours runs. A
    command of a parent that ignores SIGPIPE therefore gets SIG_DFL, as from Python's subprocess module.
    """

    ignored: frozenset[int]
    mask: frozenset[int]

    @classmethod
    def inherited(cls) -> Dispositions:
        """Read them. Call it before anything else of the process touches a signal."""
        seen = signal.valid_signals() - _PYTHON_IGNORES
        ignored = frozenset(int(s) for s in seen if signal.getsignal(s) == signal.SIG_IGN)
        mask = frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return cls(ignored, mask)

    def block(self) -> None:
        """Block HEARD in the launcher. Call it before the fork, so that no end of the child is missed.

        SIGCHLD goes to SIG_DFL: while it is ignored the kernel reaps children itself and their status is lost
        (waitpid(2)). SIGTSTP too: the launcher stops itself by it when the command has stopped.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def restore(self) -> None:
        """Give this process exactly the inherited dispositions and mask, all else SIG_DFL.

        For the child, between fork and exec. The mask comes last: a Ctrl+C that arrived since the fork then
        acts as it would have on the command itself.
        """
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            wanted = signal.SIG_IGN if number in self.ignored else signal.SIG_DFL
            if signal.getsignal(number) != wanted:
                signal.signal(number, wanted)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def pending_signals() -> frozenset[int]:
    """The signals that arrived and were not read yet. They stay pending."""
    return frozenset(int(s) for s in signal.sigpending()) & HEARD


def urgent() -> bool:
    """Whether an end was asked for (again) since the last signal was read: for a stop that can go faster."""
    return not URGENT.isdisjoint(pending_signals())


def end_by(number: int) -> NoReturn:
    """End this process by signal `number`, without a core file, so that its parent sees a death by signal."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os._exit(128 + number)  # only if the kernel refused: the first process of a pid namespace
