"""All signals that can be are ignored, and blocked as well; the same in its children, stopped or not."""

import os
import signal

from tests.hostile.agents.common import child, main_beats, register


def ignore() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def stop(name: str) -> None:
    register(name)
    os.kill(os.getpid(), signal.SIGSTOP)


ignore()
child("one", ignore, os.setsid)
pid = child("stopped", act=stop)
os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
main_beats()
