"""What `run`, `run -d` with `wait`, and `spawn` exit with: the command's own status, or a number of ours."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.runs import gone, inspect, one_line, records, run_dir, start, wait_pids
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("home", "bystander")


def foreground(*command: str) -> int:
    return agentbox("run", "--", *command).returncode


def detached(*command: str) -> int:
    """With the status of a start that failed, which is told at once."""
    done = agentbox("run", "-d", "--", *command)
    if done.returncode != 0:
        return done.returncode
    return agentbox("wait", done.stdout.strip()).returncode


def spawned(*command: str) -> int:
    run = start("sleep", "900")
    try:
        return agentbox("spawn", run, "--", *command).returncode
    finally:
        agentbox("kill", run, check=0)


Way = Callable[..., int]
each_way = pytest.mark.parametrize("way", [foreground, detached, spawned], ids=lambda way: way.__name__)


@each_way
@pytest.mark.bed("host", "nspawn")
@pytest.mark.parametrize("code", [0, 3, 75, 124, 125, 126, 127, 137, 255])
def test_own_status_of_the_command(way: Way, code: int, bed: str) -> None:
    assert way("sh", "-c", f"exit {code}") == code


DEADLY = sorted(
    int(number)
    for number in signal.valid_signals()
    if number not in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
    and number not in (signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
)


@pytest.mark.parametrize("number", DEADLY)
def test_death_by_signal_is_128_and_its_number(number: int) -> None:
    command = ("sh", "-c", f"ulimit -c 0; kill -{number} $$")
    assert foreground(*command) == 128 + number
    assert detached(*command) == 128 + number


def test_death_by_signal_of_a_spawned_task() -> None:
    run = start("sleep", "900")
    for number in (1, 2, 9, 15, 34, 64):
        command = ("sh", "-c", f"kill -{number} $$")
        assert agentbox("spawn", run, "--", *command).returncode == 128 + number
    agentbox("kill", run, check=0)


def script(folder: Path, text: bytes, mode: int = 0o755) -> str:
    path = folder / "command"
    path.write_bytes(text)
    path.chmod(mode)
    return str(path)


@each_way
class TestCommandThatIsNone:
    """Statuses as sh(1) and env(1) give them, and a line that names the command."""

    def test_not_found(self, way: Way) -> None:
        assert way("no-such-command") == 127
        assert way("/no/such/command") == 127
        assert way("") == 127
        assert way("/etc/passwd/command") == 127
        assert way("x" * 5000) == 127

    def test_not_executable(self, way: Way, tmp_path: Path) -> None:
        assert way(script(tmp_path, b"#!/bin/sh\n", 0o644)) == 126

    def test_directory(self, way: Way, tmp_path: Path) -> None:
        assert way(str(tmp_path)) == 126

    def test_script_without_interpreter_line_goes_to_sh(self, way: Way, tmp_path: Path) -> None:
        assert way(script(tmp_path, b"exit 7\n")) == 7
        assert way(script(tmp_path, b"")) == 0

    def test_interpreter_that_is_missing(self, way: Way, tmp_path: Path) -> None:
        assert way(script(tmp_path, b"#!/no/such/interpreter\n")) == 127

    def test_interpreter_that_is_not_executable(self, way: Way, tmp_path: Path) -> None:
        assert way(script(tmp_path, b"#!/etc/passwd\n")) == 126

    def test_binary_of_another_machine(self, way: Way, tmp_path: Path) -> None:
        text = b"\x7fELF\2\1\1" + bytes(9) + b"\2\0\x70\x70\1\0\0\0" + bytes(40) + b"\n"
        assert way(script(tmp_path, text)) in (126, 127, 2)  # sh tries to read it, as execvp(3) has it


def test_command_that_fails_to_start_leaves_one_line_and_a_run_that_is_over(
    home: Path, tmp_path: Path, run_id: str
) -> None:
    path = script(tmp_path, b"#!/no/such/interpreter\n")
    done = agentbox("run", "--run-id", run_id, "--", path, check=127)
    one_line(done, path, "interpreter")
    assert records(run_id, "run.ended")[0]["code"] == 127
    assert inspect(run_id)["state"] == "not started"
    one_line(agentbox("spawn", run_id, "--", "true", check=75))
    assert agentbox("wait", run_id).returncode == 127


@pytest.mark.parametrize("command", ["no-such-command", ""])
def test_command_that_does_not_exist_leaves_no_run(home: Path, command: str) -> None:
    one_line(agentbox("run", "--", command, check=127), repr(command), "not found")
    assert not (home / "runs").exists() or not list((home / "runs").iterdir())


def test_argument_list_too_long_for_the_kernel(home: Path, run_id: str) -> None:
    """What agentbox was given fits, and what it adds for the box does not."""
    env = agentbox_env()
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0] // 4
    filler = "f" * 100_000
    argv = [*agentbox_argv("run", "--run-id", run_id, "--", "true"), *[filler] * (limit // 100_008)]
    low, high = 0, 110_000
    while high - low > 1:  # the longest last word with which agentbox itself can be started
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(["true", *argv, "x" * middle], env) else (low, middle)
    low -= len(sys.executable) + 16  # the kernel counts the file's name too, and `true` has a shorter one
    done = subprocess.run([*argv, "x" * low], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 126, done.stderr[-300:]
    one_line(done, "Argument list too long")
    agentbox("kill", run_id, check=0)


def _fits(argv: list[str], env: dict[str, str]) -> bool:
    try:
        subprocess.run(argv, env=env, check=True)
    except OSError:
        return False
    return True


class TestTimeout:
    def test_foreground(self) -> None:
        done = agentbox("run", "--timeout", "0.3", "--", "sleep", "900", check=124)
        assert "Traceback" not in done.stderr

    def test_command_that_ends_in_time(self) -> None:
        agentbox("run", "--timeout", "1h", "--", "sh", "-c", "exit 3", check=3)

    def test_detached(self) -> None:
        run = start("sleep", "900", options=("--timeout", "0.3"))
        agentbox("wait", run, check=124)
        assert records(run, "task.exited")[0]["outcome"] == "timeout"

    def test_what_the_command_left_is_ended_too(self, tmp_path: Path) -> None:
        line = f"setsid sleep 901 & echo $! > {tmp_path}/pid; sleep 900"
        agentbox("run", "--timeout", "0.3", "--", "sh", "-c", line, check=124)
        assert not is_alive(int((tmp_path / "pid").read_text()))

    @pytest.mark.limit(60)
    def test_command_that_ignores_sigterm(self, tmp_path: Path) -> None:
        line = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.05; done"
        agentbox("run", "--timeout", "0.3", "--", "sh", "-c", line, check=124)
        assert not is_alive(int((tmp_path / "pid").read_text()))

    def test_spawned_task_alone(self) -> None:
        run = start("sleep", "900")
        agentbox("spawn", run, "--timeout", "0.2", "--", "sleep", "901", check=124)
        assert len(wait_pids(run, 1)) == 1
        agentbox("kill", run, check=0)


class TestRefused:
    def test_emergency_stop(self, home: Path) -> None:
        run = start("sleep", "900")
        (home / "EMERGENCY_STOP").touch()
        one_line(agentbox("run", "--", "true", check=75), "EMERGENCY_STOP")
        one_line(agentbox("run", "-d", "--", "true", check=75))
        one_line(agentbox("spawn", run, "--", "true", check=75))
        agentbox("kill", run, check=0)
        assert (home / "EMERGENCY_STOP").exists()

    def test_pause_and_stop(self, home: Path) -> None:
        from sandbox.control.orders import write_order

        run = start("sleep", "900")
        write_order(str(run_dir(run) / "ctl/control"), "PAUSE")
        one_line(agentbox("spawn", run, "--", "true", check=75), "PAUSE", "resume")
        write_order(str(run_dir(run) / "ctl/control"), "RUN")
        agentbox("spawn", run, "--", "true", check=0)
        agentbox("kill", run, check=0)
        one_line(agentbox("spawn", run, "--", "true", check=75), "STOP")
        one_line(agentbox("spawn", "-d", run, "--", "true", check=75), "STOP")

    @pytest.mark.parametrize("by", ["kill", "its own end"])
    def test_a_control_file_written_by_hand_lifts_no_stop(self, home: Path, by: str) -> None:
        """What the record says of a stop holds; a run that is alive takes tasks beside it."""
        live, run = start("sleep", "900"), start("true" if by == "its own end" else "sleep", "900")
        if by == "kill":
            agentbox("kill", run, check=0)
        agentbox("wait", run)
        control = run_dir(run) / "ctl/control"
        wait_for(lambda: control.read_text().startswith("STOP"))
        control.write_text("RUN 99\n")
        for options in ((), ("-d",), ("--backend", "cgroup")):
            done = agentbox("spawn", run, *options, "--", "true", check=75)
            one_line(done, run, "stopped" if by == "kill" else "has ended", "start a new run")
        one_line(agentbox("resume", run, check=75), run, "start a new run")
        (run_dir(live) / "ctl/control").write_text("RUN 99\n")
        agentbox("spawn", live, "--", "true", check=0)
        agentbox("kill", live, check=0)

    def test_a_task_s_control_file_written_by_hand_lifts_no_stop(self, home: Path) -> None:
        """`resume --task` of a stopped task is refused as `resume` of a stopped run is; its neighbour goes on."""
        run = start("sleep", "900")
        for task in ("stopped", "other"):
            agentbox("spawn", "-d", run, "--task", task, "--", "sleep", "900", check=0)
        agentbox("kill", run, "--task", "stopped", check=0)
        order = run_dir(run) / "ctl/tasks/stopped"
        one_line(agentbox("resume", run, "--task", "stopped", check=75), "stop order stands")
        order.write_text("RUN 99\n")
        done = agentbox("resume", run, "--task", "stopped", check=75)
        one_line(done, f"task stopped of run {run} was stopped", "start a new task")
        agentbox("pause", run, "--task", "other")
        agentbox("resume", run, "--task", "other", check=0)
        agentbox("kill", run, check=0)
        (run_dir(run) / "ctl/tasks/other").write_text("RUN 99\n")
        one_line(agentbox("resume", run, "--task", "other", check=75), "start a new task")


class TestKilled:
    """A run that was stopped is never one that succeeded."""

    @pytest.fixture
    def in_front(self, run_id: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
        launchers = []

        def begin(*command: str) -> subprocess.Popen[bytes]:
            argv = agentbox_argv("run", "--run-id", run_id, "--", *command)
            launchers.append(subprocess.Popen(argv, env=agentbox_env(), stderr=subprocess.DEVNULL))
            wait_for(lambda: (run_dir(run_id) / "manifest.jsonl").exists() and records(run_id, "task.started"))
            return launchers[0]

        yield begin
        for one in launchers:
            one.kill()
            one.wait()

    def test_foreground(self, in_front: Callable[..., subprocess.Popen[bytes]], run_id: str) -> None:
        launcher = in_front("sleep", "900")
        agentbox("kill", run_id, "--reason", "enough", check=0)
        assert launcher.wait(30) == 137
        (ended,) = records(run_id, "task.exited")
        assert (ended["outcome"], ended["signal"], ended["reason"]) == ("killed", 9, "enough")
        assert ended["asked_by"].startswith(f"uid {os.getuid()} ")

    def test_foreground_by_abort(self, in_front: Callable[..., subprocess.Popen[bytes]], run_id: str) -> None:
        launcher = in_front("sleep", "900")
        agentbox("abort", run_id, "--grace", "0", check=0)
        assert launcher.wait(30) == 143

    def test_command_that_exits_0_on_sigterm(
        self, in_front: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, run_id: str
    ) -> None:
        launcher = in_front("sh", "-c", f"trap 'exit 0' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done")
        wait_for((tmp_path / "on").exists)
        agentbox("abort", run_id, "--grace", "0", check=0)
        assert launcher.wait(30) == 143
        assert agentbox("wait", run_id).returncode == 143

    def test_detached(self) -> None:
        run = start("sleep", "900")
        waiter = subprocess.Popen(agentbox_argv("wait", run), env=agentbox_env())
        agentbox("kill", run, check=0)
        assert waiter.wait(30) == 137
        assert agentbox("wait", run).returncode == 137

    def test_by_its_own_user(self) -> None:
        run = start("sleep", "900")
        os.kill(records(run, "task.started")[0]["pid"], signal.SIGKILL)
        assert agentbox("wait", run).returncode == 137
        assert inspect(run)["state"] == "exited"

    def test_with_its_launcher_dead(self) -> None:
        run = start("sleep", "900")
        os.kill(records(run, "task.started")[0]["launcher"]["pid"], signal.SIGKILL)
        agentbox("kill", run, check=0)
        assert agentbox("wait", run).returncode == 137
        wait_for(lambda: gone(run))

    def test_lost_is_125(self) -> None:
        run = start("sleep", "900")
        started = records(run, "task.started")[0]
        os.kill(started["launcher"]["pid"], signal.SIGKILL)
        os.kill(started["pid"], signal.SIGKILL)
        done = agentbox("wait", run, check=125)
        one_line(done, run, "lost")
        agentbox("kill", run, check=0)


class TestDaemonThatHoldsTheOutput:
    LINE = "sleep 901 & until read name < /proc/$!/comm && [ $name = sleep ]; do :; done; echo $!; exit 3"

    def test_pipe_reader_gets_its_end(self) -> None:
        """As in `agentbox run -- … | cat`: cat ends because what held the pipe is ended."""
        with subprocess.Popen(
            agentbox_argv("run", "--", "sh", "-c", self.LINE),
            env=agentbox_env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as launcher:
            out, err = launcher.communicate(timeout=30)
        assert launcher.returncode == 3
        assert not is_alive(int(out))
        ended = err.splitlines()[1]
        assert out.strip() in ended and "sleep 901" in ended and "ended" in ended

    def test_left_on_purpose(self, tmp_path: Path, run_id: str) -> None:
        argv = agentbox_argv("run", "--run-id", run_id, "--on-exit", "leave", "--", "sh", "-c", self.LINE)
        with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
            done = subprocess.run(argv, env=agentbox_env(), stdout=out, stderr=err, timeout=30)
        pid = int((tmp_path / "out").read_text())
        assert done.returncode == 3
        kept = (tmp_path / "err").read_text().splitlines()[1]
        assert f"pid {pid}" in kept and "sleep 901" in kept and "kept" in kept
        assert is_alive(pid)
        assert inspect(run_id)["state"] == "leftovers"
        agentbox("wait", run_id, check=3)
        agentbox("kill", run_id, check=0)
        assert not is_alive(pid)

    def test_with_a_log(self) -> None:
        run = start("sh", "-c", self.LINE)
        agentbox("wait", run, check=3)
        pid = int(agentbox("logs", run, check=0).stdout)
        wait_for(lambda: not is_alive(pid))
        (left,) = records(run, "task.exited")[0]["leftovers"]
        assert left["pid"] == pid and left["argv"] == ["sleep", "901"]


class TestInherited:
    def test_nohup(self) -> None:
        argv = ["nohup", *agentbox_argv("run", "--", "sh", "-c", "kill -HUP $$; exit 3")]
        assert subprocess.run(argv, env=agentbox_env(), capture_output=True, timeout=60).returncode == 3

    @pytest.mark.parametrize("detach", [False, True])
    def test_parent_that_ignores_sigchld(self, detach: bool, run_id: str) -> None:
        program = (
            "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
        )
        options = ["-d"] if detach else []
        argv = [
            sys.executable,
            "-c",
            program,
            *agentbox_argv("run", "--run-id", run_id, *options, "--", "sh", "-c", "exit 3"),
        ]
        done = subprocess.run(argv, env=agentbox_env(), capture_output=True, text=True, timeout=60)
        assert done.returncode == (0 if detach else 3), done.stderr
        agentbox("wait", run_id, check=3)

    def test_closed_streams(self) -> None:
        line = 'exec "$@" <&- >&- 2>&-'
        argv = ["sh", "-c", line, "sh", *agentbox_argv("run", "--", "sh", "-c", "exit 3")]
        assert subprocess.run(argv, env=agentbox_env(), timeout=60).returncode == 3


def hidden_cgroups(*argv: str) -> subprocess.CompletedProcess[str]:
    """agentbox in a mount namespace without any cgroup v2 mount."""
    script = 'mount --make-rprivate /; umount -l -a -t cgroup2; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", *agentbox_argv(*argv)]
    return subprocess.run(command, capture_output=True, text=True, env=agentbox_env(), timeout=60)


@pytest.mark.parametrize("verb", ["kill", "abort"])
def test_all_where_nothing_can_be_looked_at(home: Path, verb: str) -> None:
    """Runs without a record may be alive: that nothing was found proves nothing."""
    agentbox(verb, "--all", check=0)
    done = hidden_cgroups(verb, "--all")
    assert done.returncode == 1, done
    one_line(done, "could not look", "cgroup")
