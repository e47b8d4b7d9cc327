"""The terminal itself: its modes after the command, its loss, and its way back from a dead group."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import shutil
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from sandbox.launch.terminal import RESET
from tests.beds.base import wait_until
from tests.launch.foreground_bed import (
    PATIENCE,
    Shell,
    Way,
    every_launcher,
    every_way,
    read_pid,
    session_members,
    shell,
    state,
    wait_gone,
)

FULL_SCREEN = """
import os, sys, time, tty
tty.setraw(0)
os.write(1, b"\\x1b[?1049h\\x1b[?1000h\\x1b[?25l\\x1b[?2004h")
with open(sys.argv[1], "w") as file: file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
RESET_TEXT = RESET.decode().replace("[", "\\[").replace("?", "\\?")


def modes(sh: Shell) -> list[object]:
    return list(termios.tcgetattr(sh.tty.child_fd))


@every_launcher
def test_modes_and_screen_after_a_kill(way: Way, tmp_path: Path) -> None:
    with shell() as sh:
        sh.run(f"sh -c '{way.line('true')}'")
        sh.type("read x")  # the shell's own modes are those of a command that runs now
        before = modes(sh)
        sh.type("")
        sh.status()
        script = tmp_path / "script"
        script.write_text(f"{way.python(tmp_path, FULL_SCREEN, f'{tmp_path}/pid')}\necho code-$?; stty -a; read x\n")
        sh.type(f"sh {script}")
        os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
        sh.see(RESET_TEXT)
        sh.see("code-137")
        wait_until(lambda: modes(sh) == before, PATIENCE, "the modes as before")
        sh.type("")
        sh.status()


@every_launcher
def test_a_killed_command_that_left_the_modes_alone_leaves_no_trace(way: Way, tmp_path: Path) -> None:
    with shell() as sh:
        sh.type(way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"))
        os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
        shown = sh.see("<<137>> ")
        assert "\x1b" not in shown


@every_way
def test_a_command_that_ends_by_itself_keeps_its_effect(way: Way, tmp_path: Path) -> None:
    (tmp_path / "script").write_text(f"{way.line('stty', '-echo', 'susp', '^Y')}\nstty -a\nstty sane\n")
    with shell() as sh:
        sh.type(f"sh {tmp_path}/script")
        shown = sh.see("<<0>> ")
        assert "-echo " in shown and "susp = ^Y" in shown and "\x1b" not in shown


@every_launcher
def test_terminal_held_by_ctrl_s_does_not_hold_up_the_end(way: Way, tmp_path: Path) -> None:
    program = FULL_SCREEN.replace("time.sleep", "import termios; termios.tcflow(0, termios.TCOOFF); time.sleep")
    program = program.replace("with open", "import termios; termios.tcflow(0, termios.TCOOFF)\nwith open")
    with shell(*way.argv("python3", "-ISc", program, f"{tmp_path}/pid")) as session:
        os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
        wait_gone(session.pid)


@every_launcher
def test_foreground_comes_back_from_a_dead_group(way: Way, tmp_path: Path) -> None:
    inner = way.line("env", f"IN={tmp_path}/pid", "bash", "--norc", "--noprofile", "--noediting", "-i")
    (tmp_path / "script").write_text(f"{inner}\necho code-$?\nread x\necho got-$x\n")
    with shell() as sh:
        sh.type(f"sh {tmp_path}/script")
        sh.type("echo $$ >$IN; kill -9 $$")
        sh.see("code-137")
        sh.type("line")
        sh.see("got-line")
        assert sh.status() == 0


def open_terminal(argv: list[str]) -> tuple[int, int]:
    """Start a command as the leader of a session on a new terminal: its pid, and the terminal's other end."""
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(argv[0], argv)
    return pid, master


def close_and_wait(pid: int, master: int) -> tuple[int, resource.struct_rusage]:
    os.close(master)
    wait_gone(pid)
    _, status, usage = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), usage


@every_launcher
@pytest.mark.parametrize("trap", ["", "trap '' HUP; "])
def test_terminal_closed_under_a_session_leader(way: Way, trap: str, tmp_path: Path) -> None:
    """`ssh -t host ...`: no shell is between. A command that ignores the hang-up is ended by the caller."""
    pid, master = open_terminal(way.argv("sh", "-c", f"{trap}echo $$ >{tmp_path}/pid; exec sleep 600"))
    command = read_pid(tmp_path / "pid")
    code, usage = close_and_wait(pid, master)
    assert code == 129
    assert usage.ru_utime + usage.ru_stime < 1.0  # it waited, and did not spin
    wait_gone(command)
    assert session_members(pid) == []


@every_way
def test_session_leader_passes_the_hang_up_on(way: Way, tmp_path: Path) -> None:
    """The kernel tells the leader of the session alone; bare, that is the command."""
    program = f"trap 'exit 9' HUP; echo $$ >{tmp_path}/pid; while :; do sleep 0.1; done"
    pid, master = open_terminal(way.argv("sh", "-c", program))
    read_pid(tmp_path / "pid")
    assert close_and_wait(pid, master)[0] == 9
    wait_until(lambda: not session_members(pid), PATIENCE, "an empty session")


@every_way
@pytest.mark.parametrize("background", ["", " & wait"])
def test_terminal_closed_under_a_shell(way: Way, background: str, tmp_path: Path) -> None:
    pid, master = open_terminal(["bash", "--norc", "--noprofile", "--noediting", "-i"])
    command = way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600")
    os.write(master, f"{command}{background}\n".encode())
    command_pid = read_pid(tmp_path / "pid")
    close_and_wait(pid, master)
    wait_gone(command_pid)
    wait_until(lambda: not session_members(pid), PATIENCE, "an empty session")


@every_launcher
def test_terminal_closed_under_a_command_that_ignores_it(way: Way, tmp_path: Path) -> None:
    pid, master = open_terminal(["bash", "--norc", "--noprofile", "--noediting", "-i"])
    command = way.line("sh", "-c", f"trap '' HUP; echo $$ >{tmp_path}/pid; exec sleep 600")
    os.write(master, f"{command}\n".encode())
    command_pid = read_pid(tmp_path / "pid")
    close_and_wait(pid, master)
    wait_gone(command_pid)
    wait_until(lambda: not session_members(pid), PATIENCE, "an empty session")


@every_way
def test_nohup(way: Way, tmp_path: Path) -> None:
    pid, master = open_terminal(["bash", "--norc", "--noprofile", "--noediting", "-i"])
    program = f"echo $$ >{tmp_path}/pid; sleep 5; echo done >{tmp_path}/done"
    line = f"nohup {way.line('sh', '-c', program)} >/dev/null 2>&1 </dev/null &"
    os.write(master, f"{line}\n".encode())
    command_pid = read_pid(tmp_path / "pid")
    close_and_wait(pid, master)
    assert state(command_pid) in "SR"
    wait_until((tmp_path / "done").exists, PATIENCE, "the end of the command")
    wait_until(lambda: not session_members(pid), PATIENCE, "an empty session")


@every_way
def test_timeout_of_coreutils_makes_a_group_of_its_own_and_still_hears_the_keys(way: Way, tmp_path: Path) -> None:
    with shell() as sh:
        sh.type(way.line("timeout", "600", "sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"))
        pid = read_pid(tmp_path / "pid")
        sh.key("z")
        sh.see("Stopped")
        sh.status()
        sh.type("fg")
        sh.see("sleep 600")
        wait_until(lambda: state(pid) == "S", PATIENCE, "a continued command")
        sh.key("c")
        assert sh.status() in (124, 130)
        wait_gone(pid)


@every_way
def test_group_of_its_own_gets_the_terminal_when_it_reads(way: Way, tmp_path: Path) -> None:
    program = """
import os
os.setpgid(0, 0)
os.write(1, b"u" + b"p\\n")
line = os.read(0, 100)
os.write(1, b"got-" + line)
"""
    with shell() as sh:
        sh.type(way.python(tmp_path, program))
        sh.see("up\r\n")
        sh.type("line")
        sh.see("got-line")
        assert sh.status() == 0
        sh.type("read x; echo got-$x")
        sh.type("more")
        sh.see("got-more")


@every_way
def test_no_terminal_at_all(way: Way) -> None:
    done = subprocess.run(way.argv("sh", "-c", "exit 3"), stdin=subprocess.DEVNULL, start_new_session=True)
    assert done.returncode == 3


@every_way
def test_a_terminal_that_is_not_the_controlling_one(way: Way) -> None:
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        argv = way.argv("sh", "-c", "stty size; kill -9 $$")
        done = subprocess.run(argv, stdin=slave, stdout=subprocess.PIPE, start_new_session=True)
        assert (done.stdout, done.returncode % 256) == (b"30 90\n", 137 if way.prefix else 247)
    finally:
        os.close(master)
        os.close(slave)


@every_way
def test_less(way: Way, tmp_path: Path) -> None:
    if not shutil.which("less"):
        if os.environ.get("CI") == "true":
            pytest.fail("less is not installed")
        pytest.skip("less is not installed")
    (tmp_path / "text").write_text("".join(f"line-{n}\n" for n in range(200)))
    with shell() as sh:
        sh.type(way.line("less", str(tmp_path / "text")))
        sh.see("line-20")
        for _ in range(3):
            sh.stop()
            sh.status()
            sh.type("fg")
            sh.see("line-2")
        sh.tty.send("G")
        sh.see("line-199")
        sh.tty.send("q")
        assert sh.status() == 0
