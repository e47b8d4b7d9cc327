"""Job control with a real shell on a real terminal: the same bare and through the launcher."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pexpect
import pytest

from tests.launch.foreground_bed import Way, every_way, read_pid, shell, wait_for_state
from tests.support import agentbox

# A full-screen program: raw mode, reads Ctrl+Z as a byte, puts the modes back, stops, comes back.
RAW = """
import os, signal, sys, termios, tty
whom = sys.argv[1]
saved = termios.tcgetattr(0)
def raw(*_):
    tty.setraw(0)
    os.write(1, b"ra" + b"w-on ")
signal.signal(signal.SIGCONT, raw)
raw()
while True:
    got = os.read(0, 1)
    if got == b"\\x1a":
        termios.tcsetattr(0, termios.TCSANOW, saved)
        if whom == "group": os.kill(0, signal.SIGTSTP)
        if whom == "self": os.kill(os.getpid(), signal.SIGTSTP)
        if whom == "stop": os.kill(os.getpid(), signal.SIGSTOP)
    elif got == b"q":
        termios.tcsetattr(0, termios.TCSANOW, saved)
        sys.exit(9)
    else:
        os.write(1, b"got-" + got.upper() + b" ")
"""


@every_way
def test_ctrl_c(way: Way) -> None:
    with shell() as sh:
        sh.type(way.line("sh", "-c", "echo up''; exec sleep 600"))
        sh.see("up\r\n")
        sh.key("c")
        assert sh.status() == 130


@every_way
def test_ctrl_backslash(way: Way) -> None:
    with shell() as sh:
        sh.run("ulimit -c 0")
        sh.type(way.line("sh", "-c", "echo up''; exec sleep 600"))
        sh.see("up\r\n")
        sh.key("\\")
        assert sh.status() == 131


@every_way
def test_one_ctrl_c_comes_once(way: Way, tmp_path: Path) -> None:
    program = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
os.write(1, b"u" + b"p\\n")
print("came", [signal.sigtimedwait({signal.SIGINT}, seconds) is not None for seconds in (20, 0.5)])
"""
    with shell() as sh:
        sh.type(way.python(tmp_path, program))
        sh.see("up\r\n")
        sh.key("c")
        sh.see(r"came \[True, False\]")
        assert sh.status() == 0


@every_way
def test_first_ctrl_c_handled_second_ends(way: Way, tmp_path: Path) -> None:
    program = """
import os, signal
def once(*_):
    os.write(1, b"fir" + b"st\\n"); signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGINT, once)
print("u" + "p", flush=True)
while True: signal.pause()
"""
    with shell() as sh:
        sh.type(way.python(tmp_path, program))
        sh.see("up\r\n")
        sh.key("c")
        sh.see("first\r\n")
        sh.key("c")
        assert sh.status() == 130


@every_way
def test_ctrl_c_ends_a_script_only_if_it_ended_the_command(way: Way, tmp_path: Path) -> None:
    killed = way.line("sh", "-c", "echo up; exec sleep 600")
    # The outer shell obeys this rule from when it waits, with SIGINT caught, on.
    waits = "until grep -q '^SigCgt:.*[2367abef]$' /proc/$OUTER/status; do :; done"
    handled = way.line("bash", "-c", f"trap 'exit 0' INT; {waits}; echo up; while :; do sleep 600 & wait; done")
    with shell() as sh:
        script = tmp_path / "script"
        script.write_text(f"{killed}\necho aft''er\n")
        sh.type(f"bash {script}")
        sh.see("up\r\n")
        sh.key("c")
        assert "after" not in sh.see(r"<<130>> ")
        script.write_text(f"export OUTER=$$\n{handled}\necho aft''er\n")
        sh.type(f"bash {script}")
        sh.see("up\r\n")
        sh.key("c")
        sh.see("after\r\n")
        assert sh.status() == 0


@every_way
def test_ctrl_z_and_fg_and_bg(way: Way, tmp_path: Path) -> None:
    with shell() as sh:
        sh.type(way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"))
        pid = read_pid(tmp_path / "pid")
        for _ in range(5):
            sh.key("z")
            sh.see("Stopped")
            assert sh.status() == 148
            sh.type("fg")
            sh.see("sleep 600")
            wait_for_state(pid, "S")
        sh.key("z")
        assert sh.status() == 148
        assert sh.run("bg") == 0
        sh.type("jobs")
        sh.see("Running")
        sh.status()
        sh.type("fg")
        sh.see("sleep 600")
        sh.key("c")
        assert sh.status() == 130


@every_way
def test_ctrl_z_at_once_after_fg(way: Way) -> None:
    """The kernel takes back the SIGCONT of `fg` that the launcher has not read yet."""
    with shell() as sh:
        sh.type(way.line("sh", "-c", "echo up''; exec sleep 600"))
        sh.see("up\r\n")
        for _ in range(60):
            sh.key("z")
            # The shell says what it continues before it does: a key may still go to the shell, which ignores it.
            while sh.tty.expect(["Stopped", pexpect.TIMEOUT], timeout=2) == 1:
                sh.key("z")
            sh.status()
            sh.type("fg")
            sh.see("sleep 600")


@every_way
@pytest.mark.parametrize("whom", ["group", "self", "stop"])
def test_raw_program_stops_itself(way: Way, whom: str, tmp_path: Path) -> None:
    with shell() as sh:
        sh.type(way.python(tmp_path, RAW, whom))
        sh.see("raw-on ")
        for key in "ab":
            sh.key("z")
            sh.see("Stopped")
            assert sh.status() == (147 if whom == "stop" and not way.prefix else 148)
            sh.type("fg")
            sh.see("raw-on ")
            sh.tty.send(key)
            sh.see(f"got-{key.upper()} ")
        sh.tty.send("q")
        assert sh.status() == 9


@every_way
def test_below_a_wrapper_that_stops_with_its_command(way: Way, tmp_path: Path) -> None:
    """As sudo does: it waits in the same group for its child to stop."""
    (tmp_path / "wrapper.py").write_text("""
import os, signal, sys
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
    os.kill(os.getpid(), signal.SIGSTOP)
sys.exit(os.waitstatus_to_exitcode(status))
""")
    with shell() as sh:
        sh.type(f"{sys.executable} {tmp_path}/wrapper.py {way.python(tmp_path, RAW, 'self')}")
        sh.see("raw-on ")
        sh.key("z")
        sh.see("Stopped")
        sh.status()
        sh.type("fg")
        sh.see("raw-on ")
        sh.tty.send("q")
        assert sh.status() == 9


@every_way
def test_ctrl_z_ignored_by_the_command(way: Way) -> None:
    with shell() as sh:
        sh.type(way.line("sh", "-c", "trap '' TSTP; echo up; read x; echo got-$x; exit 4"))
        sh.see("up\r\n")
        sh.key("z")
        sh.type("line")
        sh.see("got-line")
        assert sh.status() == 4


@every_way
def test_shell_comes_back_only_when_the_command_has_stopped(way: Way, home: Path, tmp_path: Path) -> None:
    program = """
import os, signal, time
def clean_up(*_):
    time.sleep(0.3)
    os.write(1, b"clean" + b"ed")
    os.kill(os.getpid(), signal.SIGSTOP)
signal.signal(signal.SIGTSTP, clean_up)
print("u" + "p", flush=True)
while True: signal.pause()
"""
    with shell() as sh:
        sh.type(way.python(tmp_path, program))
        sh.see("up\r\n")
        sh.key("z")
        assert "cleaned" in sh.see("Stopped")
        sh.status()
        sh.type("kill -9 %1; fg")
        assert sh.status() in (137, 1)
    for run in home.glob("runs/*"):  # its launcher was killed, so nobody has removed its box
        agentbox("kill", run.name, check=0)


@every_way
def test_inner_shell(way: Way) -> None:
    with shell() as sh:
        sh.type(way.line("env", "PS1=in<$?> ", "bash", "--norc", "--noprofile", "--noediting", "-i"))
        sh.see(r"in<0> ")
        sh.type("sh -c \"echo up''; exec sleep 600\"")
        sh.see("up\r\n")
        sh.key("c")
        sh.see(r"in<130> ")
        sh.type("sh -c \"echo up''; exec sleep 600\"")
        sh.see("up\r\n")
        sh.key("z")
        sh.see(r"in<148> ")
        sh.type("fg")
        sh.see("sleep 600")
        sh.key("c")
        sh.see(r"in<130> ")
        for _ in range(3):
            sh.type("suspend")
            sh.see("Stopped")
            sh.status()
            sh.type("fg")
            sh.type("echo he''re")
            sh.see("here\r\n")
            sh.see(r"in<0> ")
        sh.type("exit 5")
        assert sh.status() == 5
        sh.type("read x; echo got-$x")
        sh.type("line")
        sh.see("got-line")


@every_way
def test_background_job_that_reads_stops_and_fg_serves_it(way: Way) -> None:
    with shell() as sh:
        sh.run(way.line("cat") + " &")
        sh.run('until [ -n "$(jobs -s)" ]; do sleep 0.05; done')
        sh.type("jobs")
        sh.see("Stopped")
        sh.status()
        sh.type("fg")
        sh.type("hello")
        sh.see("hello\r\n.*hello\r\n")
        sh.key("d")
        assert sh.status() == 0


@every_way
def test_command_reads_a_line(way: Way) -> None:
    with shell() as sh:
        sh.type(way.line("sh", "-c", "echo up''; read x; echo got-$x"))
        sh.see("up\r\n")
        sh.type("line")
        sh.see("got-line")
        assert sh.status() == 0


@every_way
def test_pipelines(way: Way) -> None:
    reader = way.line("sh", "-c", "echo up''; read x; echo got-$x; exec sleep 600")
    with shell() as sh:
        for line in (f"{reader} | cat", f"sleep 600 | {reader.replace('read x', 'read x </dev/tty')}"):
            sh.type(line)
            sh.see("up\r\n")
            sh.key("z")
            sh.see("Stopped")
            sh.status()
            sh.type("fg")
            sh.see("sleep 600")
            sh.type("word")
            sh.see("got-word")
            sh.key("c")
            assert sh.status() == 130


@every_way
def test_stopped_from_elsewhere(way: Way, tmp_path: Path) -> None:
    with shell() as sh:
        sh.type(way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"))
        pid = read_pid(tmp_path / "pid")
        os.kill(pid, signal.SIGSTOP)
        sh.see("Stopped")
        sh.status()
        sh.type("fg")
        wait_for_state(pid, "SR")
        sh.key("c")
        assert sh.status() == 130


@every_way
def test_in_a_script_a_stop_from_elsewhere_ends_with_its_continue(way: Way, tmp_path: Path) -> None:
    command = way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; read x; exit 6")
    (tmp_path / "script").write_text(f"{command}\necho code-$?\n")
    with shell() as sh:
        sh.type(f"sh {tmp_path}/script")
        pid = read_pid(tmp_path / "pid")
        os.kill(pid, signal.SIGSTOP)
        wait_for_state(pid, "T")
        os.kill(pid, signal.SIGCONT)
        wait_for_state(pid, "SR")
        sh.type("line")
        sh.see("code-6")
        assert sh.status() == 0


@every_way
def test_ctrl_z_in_a_script(way: Way, tmp_path: Path) -> None:
    command = way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; read x; exit 6")
    (tmp_path / "script").write_text(f"{command}\necho code-$?\n")
    with shell() as sh:
        sh.type(f"sh {tmp_path}/script")
        pid = read_pid(tmp_path / "pid")
        for _ in range(3):
            sh.key("z")
            sh.see("Stopped")
            sh.status()
            wait_for_state(pid, "T")
            sh.type("fg")
            sh.see("script")
            wait_for_state(pid, "SR")
        sh.type("line")
        sh.see("code-6")
        assert sh.status() == 0


@every_way
def test_window_size(way: Way, tmp_path: Path) -> None:
    program = """
import os, signal
def show(*_):
    os.write(1, b"siz" + b"e %d %d\\n" % os.get_terminal_size())
signal.signal(signal.SIGWINCH, show)
print("u" + "p", flush=True)
while True: signal.pause()
"""
    with shell() as sh:
        sh.type(way.python(tmp_path, program))
        sh.see("up\r\n")
        sh.tty.setwinsize(33, 101)
        sh.see("size 101 33\r\n")
        sh.tty.setwinsize(24, 80)
        assert "size" not in sh.see("size 80 24\r\n")
        sh.key("c")
        assert sh.status() == 130


@every_way
def test_vim(way: Way, tmp_path: Path) -> None:
    if not shutil.which("vim"):
        if os.environ.get("CI") == "true":
            pytest.fail("vim is not installed")
        pytest.skip("vim is not installed")
    file = tmp_path / "text"
    with shell() as sh:
        sh.type(way.line("vim", "-u", "NONE", "-i", "NONE", "-n", str(file)))
        sh.see("All|New")
        sh.tty.send("ione\x1b")
        sh.key("z")
        sh.see("Stopped")
        sh.status()
        sh.type("fg")
        sh.see("one")
        sh.tty.send("otwo\x1b:wq\r")
        assert sh.status() == 0
        assert file.read_text() == "one\ntwo\n"
