"""A container on a terminal: its own terminal inside, keys and window size passed on, modes put back."""

from __future__ import annotations

import contextlib
import os
import termios
import time
from collections.abc import Iterator
from typing import Any

import pexpect
import pytest

from tests.docker.conftest import Lab
from tests.support import wait_for

pytestmark = pytest.mark.bed("dockerd")


class Screen:
    """A terminal with a launcher on it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.run_id = lab.new_id()
        self.process: Any = None

    def start(self, *command: str, **options: Any) -> Any:
        argv = self.lab.argv(self.run_id, *command, **options)
        self.process = pexpect.spawn(argv[0], argv[1:], cwd=str(self.lab.work), timeout=30, dimensions=(31, 97))
        return self.process

    def code(self) -> int:
        self.process.expect(pexpect.EOF)
        self.process.close()
        return int(self.process.exitstatus if self.process.exitstatus is not None else 128 + self.process.signalstatus)


@pytest.fixture
def screen(lab: Lab) -> Iterator[Screen]:
    screen = Screen(lab)
    yield screen
    if screen.process is not None:
        screen.process.close(force=True)


def test_the_command_has_a_terminal_of_the_same_size(screen: Screen) -> None:
    # Engines before 23.0 set the size only once the command runs, and it learns of it by SIGWINCH.
    child = screen.start(
        "sh",
        "-c",
        "test -t 0 && test -t 1 && test -t 2 && until stty size 2>/dev/null | grep .; do sleep .1; done; exit 6",
    )
    child.expect("31 97")
    assert screen.code() == 6


def test_a_new_window_size_reaches_the_command(screen: Screen) -> None:
    child = screen.start("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep .1; done")
    child.expect("ready")
    child.setwinsize(22, 77)
    child.expect("22 77")
    child.sendintr()
    assert screen.code() == 130


def test_ctrl_c_is_a_key_that_the_command_may_take(screen: Screen) -> None:
    child = screen.start("sh", "-c", "trap 'echo caught; exit 4' INT; echo ready; while :; do sleep .1; done")
    child.expect("ready")
    child.sendintr()
    child.expect("caught")
    assert screen.code() == 4


def test_the_engines_own_detach_keys_are_keys_like_others(screen: Screen) -> None:
    child = screen.start("sh", "-c", "stty raw -echo; echo ready; head -c 4 | od -An -tx1; stty sane")
    child.expect("ready")
    child.send("\x10\x11\x10\x11")
    child.expect("10 11 10 11")
    assert screen.code() == 0


def test_the_end_of_input_key(screen: Screen) -> None:
    child = screen.start("cat")
    child.sendline("hello")
    child.expect("hello\r\nhello")
    child.sendeof()
    assert screen.code() == 0


@pytest.mark.parametrize("how", ["exit", "killed"])
def test_the_modes_of_the_terminal_come_back(screen: Screen, how: str) -> None:
    """The launcher is a shell's child here, so that the terminal outlives it."""
    argv = screen.lab.argv(screen.run_id, "sh", "-c", "echo ready; read line")
    child = pexpect.spawn("sh", ["-c", '"$@"; echo code=$?; read x', "sh", *argv], cwd=str(screen.lab.work), timeout=30)
    screen.process = child
    before = termios.tcgetattr(child.child_fd)
    child.expect("ready")
    wait_for(lambda: termios.tcgetattr(child.child_fd) != before)
    if how == "exit":
        child.send("\r")
    else:
        backend = screen.lab.backend()
        assert backend.kill(screen.lab.parent(screen.run_id), time.monotonic() + 10) == "empty"
    child.expect("code=([0-9]+)")
    assert int(child.match[1]) == (0 if how == "exit" else 137)
    assert termios.tcgetattr(child.child_fd) == before


def test_no_terminal_inside_where_stderr_is_a_file(screen: Screen) -> None:
    argv = screen.lab.argv(screen.run_id, "sh", "-c", "test -t 1 || echo none; echo err >&2")
    child = pexpect.spawn("sh", ["-c", '"$@" 2>err', "sh", *argv], cwd=str(screen.lab.work), timeout=30)
    screen.process = child
    child.expect("none")
    assert screen.code() == 0
    assert (screen.lab.work / "err").read_text() == "err\n"


def test_ctrl_z_holds_the_container_and_fg_lets_it_go_on(screen: Screen) -> None:
    """Without a terminal inside, the container is paused while its launcher is stopped."""
    lab = screen.lab
    argv = lab.argv(screen.run_id, "sh", "-c", "while :; do date +%s%N >> beat; sleep .1; done")
    child = pexpect.spawn("bash", ["--norc", "-i"], cwd=str(lab.work), timeout=30, env={"PS1": "$ ", **_env()})
    screen.process = child
    quoted = " ".join(f"'{word}'" for word in argv)
    child.sendline(f"{quoted} 2>err")
    beat = lab.work / "beat"
    wait_for(beat.exists, 30)
    child.send("\x1a")
    wait_for(lambda: lab.state(screen.run_id) == "paused", 20)
    child.sendline("fg")
    wait_for(lambda: lab.state(screen.run_id) == "running", 20)
    size = beat.stat().st_size
    wait_for(lambda: beat.stat().st_size > size)
    child.sendintr()
    wait_for(lambda: lab.state(screen.run_id) == "exited", 20)
    child.sendline("exit")


def _env() -> dict[str, str]:
    names = ("PATH", "AGENTBOX_HOME", "DOCKER_HOST", "AGENTBOX_TEST")
    return {name: os.environ[name] for name in names if name in os.environ}


def test_the_terminal_is_hung_up(screen: Screen) -> None:
    """Its end ends the container: by the SIGHUP that is passed on, or by the launcher after a while."""
    child = screen.start("sh", "-c", "echo ready; sleep 900")
    child.expect("ready")
    with contextlib.suppress(pexpect.ExceptionPexpect):  # it waits a moment only for the launcher's end
        child.close(force=False)
    wait_for(lambda: screen.lab.state(screen.run_id) == "exited", 30)
