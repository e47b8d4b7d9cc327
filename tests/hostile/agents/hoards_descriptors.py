"""As many descriptors as it may have: memory files, pipes, sockets that hold each other in flight."""

import array
import os
import resource
import socket

from tests.hostile.agents.common import child, main_beats

MOST = 4000


def hoard() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, MOST), hard))
    try:
        while True:
            os.memfd_create("x")
            os.dup(os.open(f"/proc/{os.getpid()}", os.O_RDONLY))
            one, other = socket.socketpair()
            rights = array.array("i", [one.fileno(), other.fileno()])
            one.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            one.detach(), other.detach()
    except OSError:
        os.closerange(MOST // 2, MOST // 2 + 10)  # what the heartbeat needs


child("one", hoard)
child("two", hoard, os.setsid)
main_beats()
