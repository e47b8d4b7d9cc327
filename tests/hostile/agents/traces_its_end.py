"""A tracer of its own that holds each process at its end (PTRACE_O_TRACEEXIT) and never lets it go on. ptrace(2)."""

import ctypes
import time

from tests.hostile.agents.common import INTERVAL, child, main_beats

SEIZE, TRACEEXIT = 0x4206, 0x40


def trace() -> None:
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    for pid in held:
        while call(SEIZE, pid, None, TRACEEXIT) != 0:
            time.sleep(INTERVAL)


held = [child("one"), child("two")]
child("tracer", trace)
main_beats()
