"""The smallest launcher: fork, exec, supervise, exit as the command did. `agentbox run --` without a box.

usage: driver.py [--timeout SECONDS] [--events FILE] -- COMMAND...
"""

from __future__ import annotations

import os
import signal
import sys
import time

# Not by PYTHONPATH: the command would inherit it.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from sandbox.launch.signals import Dispositions
from sandbox.launch.supervise import Ended, Event, exit_as, reap, supervise
from sandbox.launch.terminal import Terminal, reserve_stdio


def environment() -> dict[bytes, bytes]:
    """The environment as inherited: where the locale is C, the interpreter adds LC_CTYPE (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
    return {name: value for name, _, value in pairs}


def start(argv: list[bytes], dispositions: Dispositions) -> int:
    env = environment()
    pid = os.fork()
    if pid == 0:
        try:
            dispositions.restore()
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(2, f"{error}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    return pid


def options(argv: list[str]) -> tuple[dict[str, str], list[bytes]]:
    """The options before `--`, by name, and the command."""
    split = argv.index("--")
    names = argv[:split:2]
    return dict(zip(names, argv[1:split:2], strict=True)), [os.fsencode(a) for a in argv[split + 1 :]]


def main() -> None:
    dispositions = Dispositions.inherited()
    reserve_stdio()
    dispositions.block()
    given, command = options(sys.argv[1:])
    terminal = Terminal.save()
    events = given.get("--events")

    def note(event: Event) -> None:
        if events:
            with open(events, "a", encoding="utf-8") as file:
                file.write(f"{event.kind} {event.number} {int(event.sent)}\n")

    deadline = time.monotonic() + float(given["--timeout"]) if "--timeout" in given else None
    child = start(command, dispositions)
    ended = supervise(child, dispositions=dispositions, deadline=deadline, on_event=note, terminal=terminal)
    killed = ended.signal is not None
    if ended.timed_out or ended.hung_up:
        os.kill(child, signal.SIGKILL)
        last = reap(child, deadline=None)
        assert last is not None
        killed, ended = last.signal is not None, Ended(ended.code)
    terminal.restore(killed=killed)
    exit_as(ended)


if __name__ == "__main__":
    main()
