"""A container in the foreground: stdio byte for byte, exit status, signals, as without it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.docker.conftest import Lab
from tests.support import wait_for

pytestmark = pytest.mark.bed("dockerd")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "exit 130"], 130),
        (["sh", "-c", "kill -9 $$"], 137),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["no-such-command"], 127),
        (["/tmp"], 126),
    ],
)
def test_exit_status_is_the_commands_own(lab: Lab, command: list[str], code: int) -> None:
    assert lab.run(*command).returncode == code


def test_stdin_reaches_the_command_and_ends(lab: Lab) -> None:
    done = lab.run("md5sum", stdin=b"foo\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"d3b07384d113edec49eaa6238ad5ff00  -\n", b"")


def test_argv_is_passed_on_as_it_is(lab: Lab) -> None:
    words = ["", " two  words ", "$HOME", "*", "a\nb", "-x", "--", "naïve"]
    done = lab.run("sh", "-c", 'printf "%s\\0" "$@"', "sh", *words)
    assert done.stdout == b"".join(word.encode() + b"\0" for word in words)


def test_bytes_pass_both_ways_unchanged(lab: Lab) -> None:
    data = os.urandom(3_000_001)
    done = lab.run("cat", stdin=data)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_stdout_and_stderr_stay_apart(lab: Lab) -> None:
    done = lab.run("sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


def test_a_command_that_reads_a_part_of_stdin(lab: Lab) -> None:
    assert lab.run("head", "-c", "5", stdin=b"x" * 2_000_000).stdout == b"xxxxx"


@pytest.mark.parametrize("size", [8 << 20, pytest.param(40 << 20, id="more-than-is-held")])
def test_a_slow_reader_loses_nothing(lab: Lab, size: int) -> None:
    """The reader begins only long after the engine would have dropped what is left of the stream."""
    process = lab.start(lab.new_id(), "sh", "-c", f"head -c {size} /dev/zero; printf end", stdio=subprocess.PIPE)
    assert process.stdout is not None
    time.sleep(4)  # the reader's own slowness is what is tested
    data = process.stdout.read()
    assert len(data) == size + 3
    assert data.endswith(b"\0end")
    assert process.wait(30) == 0


@pytest.mark.full("50 rounds")
@pytest.mark.limit(600)
def test_the_tail_is_complete_each_time(lab: Lab) -> None:
    for _ in range(50):
        process = lab.start(lab.new_id(), "sh", "-c", "head -c 8388608 /dev/zero", stdio=subprocess.PIPE)
        assert process.stdout is not None
        time.sleep(1)
        assert len(process.stdout.read()) == 8 << 20
        assert process.wait(30) == 0


def test_a_reader_that_goes_away_ends_the_command_as_a_pipe_would(lab: Lab) -> None:
    process = lab.start(lab.new_id(), "yes", stdio=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(2) == b"y\n"
    process.stdout.close()
    assert process.wait(30) == 128 + signal.SIGPIPE


def test_a_command_that_closes_its_output_is_waited_for(lab: Lab) -> None:
    assert lab.run("sh", "-c", "exec >&- 2>&-; sleep 2; exit 7").returncode == 7


def test_what_a_command_leaves_behind_ends_and_holds_up_nothing(lab: Lab) -> None:
    run_id = lab.new_id()
    done = lab.run("sh", "-c", "sleep 600 & setsid sleep 600 & exit 3", run_id=run_id)
    assert done.returncode == 3
    assert lab.state(run_id) == "exited"


@pytest.mark.parametrize(
    ("redirection", "command", "code", "output"),
    [
        ("<&-", "cat; echo read", 0, b"read\n"),
        (">&-", "echo lost; exit 4", 4, b""),
        (">&- 2>&- <&-", "exit 5", 5, b""),
        ("<file", "cat", 0, b"from a file"),
        (">file", "echo new", 0, b""),
    ],
)
def test_stdio_in_every_form(lab: Lab, redirection: str, command: str, code: int, output: bytes) -> None:
    (lab.work / "file").write_bytes(b"from a file")
    argv = lab.argv(lab.new_id(), "sh", "-c", command)
    done = subprocess.run(
        ["sh", "-c", f'"$@" {redirection}', "sh", *argv], capture_output=True, cwd=lab.work, timeout=60
    )
    assert (done.returncode, done.stdout) == (code, output)
    if redirection == ">file":
        assert (lab.work / "file").read_bytes() == b"new\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_launcher_reaches_the_command(lab: Lab, number: signal.Signals) -> None:
    run_id = lab.new_id()
    mark = lab.work / "got"
    name = number.name.removeprefix("SIG")
    process = lab.running(
        run_id, "sh", "-c", f"trap 'echo {name} > got; exit 9' {name}; echo ready > up; while :; do sleep .1; done"
    )
    wait_for((lab.work / "up").exists)
    process.send_signal(number)
    assert process.wait(30) == 9
    assert mark.read_text() == f"{name}\n"


def test_a_signal_that_ends_the_command_ends_the_launcher_with_128_and_its_number(lab: Lab) -> None:
    run_id = lab.new_id()
    process = lab.running(run_id, "sleep", "900")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert lab.state(run_id) == "exited"


def test_timeout_is_124_and_nothing_is_left(lab: Lab) -> None:
    run_id = lab.new_id()
    assert lab.run("sleep", "900", run_id=run_id, timeout=2).returncode == 124
    assert lab.state(run_id) == "exited"


def test_detached_output_goes_to_the_log(lab: Lab) -> None:
    run_id = lab.new_id()
    done = lab.run("sh", "-c", "echo out; echo err >&2; printf '\\377\\n'", run_id=run_id, detach=True)
    assert done.returncode == 0, done.stderr
    log = Path(lab.home) / "runs" / run_id / "out" / "main.log"
    wait_for(lambda: log.exists() and set(log.read_bytes().split(b"\n")) == {b"out", b"err", b"\xff", b""})
    wait_for(lambda: '"run.ended"' in (log.parent.parent / "manifest.jsonl").read_text())
