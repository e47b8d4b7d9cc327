"""Run a command bare and through a launcher, with or without a terminal, and watch what becomes of it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pexpect
import pytest

from tests.beds.base import wait_until

PROMPT = re.compile(r"<<(\d+)>> ")
PATIENCE = 20.0  # seconds; a bound on a test that fails, never a measure


@dataclass(frozen=True)
class Way:
    """How a command is run: bare, or behind `prefix`."""

    name: str
    prefix: tuple[str, ...]

    def argv(self, *command: str) -> list[str]:
        return [*self.prefix, *command]

    def line(self, *command: str) -> str:
        """The shell's command line."""
        return shlex.join(self.argv(*command))

    def python(self, folder: Path, program: str, *args: str) -> str:
        """The shell's command line for a Python program, which goes to a file in `folder`."""
        (file := folder / "program.py").write_text(program)
        return self.line(sys.executable, "-IS", str(file), *args)


DRIVER_FILE = str(Path(__file__).with_name("driver.py"))
BARE = Way("bare", ())
DRIVER = Way("driver", (sys.executable, "-ISB", DRIVER_FILE, "--"))
RUN = Way("run", (sys.executable, "-ISB", str(Path(__file__).with_name("run.py")), "--"))
LAUNCHERS = [DRIVER, RUN]
WAYS = [BARE, *LAUNCHERS]

every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
every_launcher = pytest.mark.parametrize("way", LAUNCHERS, ids=lambda way: way.name)


def state(pid: int) -> str:
    """The state letter of proc(5): T is stopped, Z a zombie, "" gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for_state(pid: int, letters: str) -> None:
    wait_until(lambda: state(pid) in letters, PATIENCE, f"process {pid} in state {letters}")


def wait_gone(pid: int) -> None:
    wait_until(lambda: state(pid) in ("", "Z"), PATIENCE, f"the end of process {pid}")


def read_pid(file: Path) -> int:
    """The process id that a command writes to a file, when it has."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), PATIENCE, f"a pid in {file}")
    return int(file.read_text())


def session_members(sid: int) -> list[int]:
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == sid and fields[0] != "Z":
                found.append(pid)
    return found


def environment() -> dict[str, str]:
    return {**os.environ, "PS1": "<<$?>> ", "TERM": "xterm", "INPUTRC": "/dev/null", "HISTFILE": ""}


class Shell:
    """A job-control shell on a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        command = argv or ("bash", "--norc", "--noprofile", "--noediting", "-i")
        self.tty = pexpect.spawn(command[0], list(command[1:]), env=environment(), timeout=PATIENCE, encoding="utf-8")
        self.tty.delaybeforesend = None
        self.pid = int(self.tty.pid or 0)
        if not argv:
            self.status()

    def type(self, line: str) -> None:
        self.tty.sendline(line)

    def key(self, letter: str) -> None:
        """Control and a letter."""
        self.tty.sendcontrol(letter)

    def stop(self) -> None:
        """Ctrl+Z until the job is said to be stopped: less, for one, overlooks a signal while it draws."""
        for _ in range(10):
            self.key("z")
            if self.tty.expect(["Stopped", pexpect.TIMEOUT], timeout=PATIENCE / 10) == 0:
                return
        raise TimeoutError(f"not stopped: {self.tty.before!r}")

    def see(self, pattern: str) -> str:
        """Wait for a pattern in what the terminal shows, and return what came before it."""
        self.tty.expect(pattern)
        return str(self.tty.before)

    def status(self) -> int:
        """Wait for the prompt; the exit status that it shows."""
        self.tty.expect(PROMPT)
        return int(self.tty.match.group(1))

    def run(self, line: str) -> int:
        self.type(line)
        return self.status()

    def end(self) -> None:
        """Hang up, as closing a terminal's window does, which ends a run; and kill what does not mind."""
        with suppress(OSError):
            os.close(self.tty.fileno())
            wait_until(lambda: not session_members(self.pid), PATIENCE, "an empty session")
        for pid in session_members(self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            self.tty.close(force=True)
        wait_until(lambda: not session_members(self.pid), PATIENCE, "an empty session")


@contextmanager
def shell(*argv: str) -> Iterator[Shell]:
    """A shell, or another command on a terminal; its whole session is dead after."""
    opened = Shell(*argv)
    try:
        yield opened
    finally:
        opened.end()
