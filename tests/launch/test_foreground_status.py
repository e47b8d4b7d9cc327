"""Exit status, signals and waiting, without a terminal."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beds.base import wait_until
from tests.launch.foreground_bed import (
    BARE,
    DRIVER_FILE,
    PATIENCE,
    RUN,
    Way,
    every_launcher,
    every_way,
    read_pid,
    state,
    wait_for_state,
    wait_gone,
)


def status(way: Way, *command: str) -> int:
    return subprocess.run(way.argv(*command), timeout=60).returncode


@every_launcher
@pytest.mark.parametrize("code", [0, 1, 2, 3, 75, 124, 125, 126, 127, 128, 130, 137, 254, 255])
def test_exit_code(way: Way, code: int) -> None:
    assert status(way, "sh", "-c", f"exit {code}") == code


@every_launcher
def test_each_signal_gives_128_and_its_number(way: Way) -> None:
    for number in sorted(signal.valid_signals()):
        command = ("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$")
        if number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            continue
        bare = status(BARE, *command)
        assert status(way, *command) == (128 - bare if bare < 0 else bare), number


@every_launcher
def test_output_is_exact_and_a_daemon_holding_it_holds_up_nothing(way: Way) -> None:
    script = "sleep 600 & printf '%s\\na\\0b\\377' $!; exit 3"
    process = subprocess.Popen(way.argv("sh", "-c", script), stdout=subprocess.PIPE)
    assert process.wait(PATIENCE) == 3
    assert process.stdout is not None
    pid, _, rest = os.read(process.stdout.fileno(), 100).partition(b"\n")
    daemon = int(pid)
    try:
        assert rest == b"a\0b\xff"
        # What the command left is ended with its run; the bare launcher knows of no run.
        assert state(daemon) in ("", "Z") if way is RUN else state(daemon) in "SR"
    finally:
        if way is not RUN:
            os.kill(daemon, signal.SIGKILL)
        process.stdout.close()


@every_launcher
def test_large_output_to_a_slow_reader(way: Way) -> None:
    process = subprocess.Popen(way.argv("head", "-c", "8388608", "/dev/zero"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    total = 0
    while got := os.read(process.stdout.fileno(), 100_000):
        total += len(got)
        select.select([], [], [], 0.001)
    assert (total, process.wait(PATIENCE)) == (8388608, 0)
    process.stdout.close()


# Tells each signal that it gets; the last of the real-time ones ends it with 7.
LISTENER = """
import os, signal, sys
ALL = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
signal.pthread_sigmask(signal.SIG_BLOCK, ALL)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    info = signal.sigwaitinfo(ALL)
    os.write(1, b"%d\\n" % info.si_signo)
    if info.si_signo == signal.SIGRTMAX:
        sys.exit(7)
"""


@every_way
def test_what_is_sent_to_the_launcher_reaches_the_command_once(way: Way) -> None:
    argv = way.argv(sys.executable, "-ISc", LISTENER)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        left_out = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGRTMAX}
        faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS}
        numbers = sorted(int(s) for s in signal.valid_signals() - left_out - faults - {signal.SIGABRT})
        for number in numbers:
            os.kill(process.pid, number)
            assert int(process.stdout.readline()) == number
        os.kill(process.pid, signal.SIGRTMAX)
        assert process.stdout.read() == f"{int(signal.SIGRTMAX)}\n"
        assert process.wait(PATIENCE) == 7


@every_way
def test_what_the_command_sends_to_its_group_comes_once(way: Way) -> None:
    program = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
os.kill(0, signal.SIGRTMIN)
print([signal.sigtimedwait({signal.SIGRTMIN}, 0.5) is not None for _ in range(2)])
"""
    argv = way.argv(sys.executable, "-ISc", program)
    done = subprocess.run(argv, stdout=subprocess.PIPE, start_new_session=True, timeout=60)
    assert done.stdout == b"[True, False]\n"


@every_launcher
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1"])
def test_death_by_a_signal_to_the_launcher(way: Way, name: str, tmp_path: Path) -> None:
    process = subprocess.Popen(way.argv("sh", "-c", f"ulimit -c 0; echo $$ >{tmp_path}/pid; exec sleep 600"))
    pid = read_pid(tmp_path / "pid")
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert process.wait(PATIENCE) == 128 + number
    assert state(pid) == ""


@every_way
def test_hang_up_signal_without_a_terminal_is_the_commands_own_affair(way: Way) -> None:
    """A server that reads its configuration again at SIGHUP lives on, past the time for a lost terminal."""
    program = """
import os, signal, sys
signal.signal(signal.SIGHUP, lambda *_: os.write(1, b"again\\n"))
os.write(1, b"ready\\n")
signal.sigtimedwait({signal.SIGTERM}, 4)
sys.exit(8)
"""
    with subprocess.Popen(way.argv(sys.executable, "-ISc", program), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == b"again\n"
        assert process.wait(PATIENCE) == 8


@every_way
def test_alarm_set_by_the_parent(way: Way) -> None:
    """An alarm clock outlives exec, not fork: `perl -e 'alarm 9; exec @ARGV'` limits a command."""

    def alarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.3)

    done = subprocess.run(way.argv("sleep", "600"), preexec_fn=alarm, timeout=60)
    assert done.returncode % 256 in (128 + signal.SIGALRM, 256 - signal.SIGALRM)


@every_way
def test_interrupt_ignored_by_a_scripts_background(way: Way, tmp_path: Path) -> None:
    """A shell without job control starts `&` with SIGINT ignored: it stays so, and SIGTERM works."""
    command = way.line("sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600")
    script = f"{command} & echo $!; wait $!; exit $?"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        launcher, command_pid = int(shell.stdout.readline()), read_pid(tmp_path / "pid")
        os.kill(launcher, signal.SIGINT)
        os.kill(launcher, signal.SIGTERM)
        assert shell.wait(PATIENCE) == 143
        wait_gone(command_pid)


@every_launcher
def test_children_reaped_by_the_kernel_for_a_parent_that_ignores_sigchld(way: Way) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    argv = way.argv("sh", "-c", "exit 3")
    assert subprocess.run(argv, preexec_fn=ignore, restore_signals=False).returncode == 3


@every_launcher
def test_stopped_and_continued_from_elsewhere(way: Way, tmp_path: Path) -> None:
    process = subprocess.Popen(way.argv("sh", "-c", f"echo $$ >{tmp_path}/pid; read x; exit 5"), stdin=subprocess.PIPE)
    assert process.stdin is not None
    pid = read_pid(tmp_path / "pid")
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        os.kill(pid, number)
        wait_for_state(pid, "T" if number == signal.SIGSTOP else "TS")
        wait_for_state(process.pid, "S")
        os.kill(pid, signal.SIGCONT)
        wait_for_state(pid, "S")
    process.stdin.write(b"x\n")
    process.stdin.close()
    assert process.wait(PATIENCE) == 5


@pytest.mark.parametrize("stopped", [False, True])
def test_time_limit(stopped: bool, tmp_path: Path) -> None:
    argv = [sys.executable, DRIVER_FILE, "--timeout", "1", "--", "sh", "-c"]
    process = subprocess.Popen([*argv, f"trap '' TERM; echo $$ >{tmp_path}/pid; exec sleep 600"])
    pid = read_pid(tmp_path / "pid")
    if stopped:
        os.kill(pid, signal.SIGSTOP)
    assert process.wait(PATIENCE) == 124
    assert state(pid) == ""


def test_events(tmp_path: Path) -> None:
    events = tmp_path / "events"
    argv = [sys.executable, DRIVER_FILE, "--events", str(events), "--", "sh", "-c"]
    process = subprocess.Popen([*argv, f"trap '' USR1; echo $$ >{tmp_path}/pid; exec sleep 600"])
    pid = read_pid(tmp_path / "pid")

    def seen(line: str) -> None:
        wait_until(lambda: events.exists() and line in events.read_text().splitlines(), PATIENCE, line)

    process.send_signal(signal.SIGUSR1)
    seen(f"signal {int(signal.SIGUSR1)} 1")
    os.kill(pid, signal.SIGSTOP)
    seen(f"stopped {int(signal.SIGSTOP)} 0")
    os.kill(pid, signal.SIGCONT)
    seen("continued 0 0")
    process.terminate()
    assert process.wait(PATIENCE) == 143


def run_inline(program: str) -> str:
    root = str(Path(DRIVER_FILE).parents[2])
    argv = [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{program}"]
    return subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout


PREPARED = """
import os, signal, time
from sandbox.errors import AgentboxError
from sandbox.launch.signals import Dispositions, pending_signals, urgent
from sandbox.launch.supervise import reap, supervise
signals = Dispositions.inherited()
signals.block()
def child(body):
    pid = os.fork()
    if pid == 0:
        signals.restore()
        body()
        os._exit(6)
    return pid
"""


def test_other_children_are_left_alone() -> None:
    program = """
other = child(lambda: os._exit(4))
mine = child(lambda: time.sleep(0.3))
print(supervise(mine, dispositions=signals).code, os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""
    assert run_inline(PREPARED + program) == "6 4\n"


def test_status_taken_by_somebody_else() -> None:
    program = """
mine = child(lambda: None)
os.waitpid(mine, 0)
try:
    supervise(mine, dispositions=signals)
except AgentboxError as error:
    print(error)
"""
    assert "is lost" in run_inline(PREPARED + program)


def test_signals_during_the_teardown_stay_pending_and_can_be_asked_for() -> None:
    program = """
mine = child(signal.pause)
ended = supervise(mine, dispositions=signals, deadline=time.monotonic())
print(ended.timed_out, ended.code, urgent())
os.kill(os.getpid(), signal.SIGUSR1)
print(urgent())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) * 100:
    os.kill(os.getpid(), number)
print(urgent(), sorted(int(n) for n in pending_signals()))
print(reap(mine, deadline=time.monotonic() + 0.1))
os.kill(mine, signal.SIGKILL)
print(reap(mine, deadline=None).code, urgent())
"""
    expected = "True 124 False\nFalse\nTrue [1, 2, 10, 15]\nNone\n137 True\n"
    assert run_inline(PREPARED + program) == expected


def test_core_dumped_is_told() -> None:
    program = """
import resource
mine = child(lambda: (resource.setrlimit(resource.RLIMIT_CORE, (0, 0)), os.abort()))
ended = supervise(mine, dispositions=signals)
print(ended.code, ended.signal, ended.core)
"""
    assert run_inline(PREPARED + program) == "134 6 False\n"
