"""An agent that prints for ever does not fill the disk, is not slowed by that, and what was dropped is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import inspect, new_id, one_line, run_dir, start
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

pytestmark = pytest.mark.usefixtures("home", "bystander")

LIMIT = 1 << 20
EXIT = 'import os\nfor n in range(%d): os.write(1, b"%%099d\\n" %% n)\n'
PRINTER = [sys.executable, "-c", EXIT % 100_000]  # 10 MB in numbered lines of 100 bytes
ENDLESS = [sys.executable, "-c", "import os\nwhile True: os.write(1, (b'x' * 99 + b'\\n') * 655)"]


def log_of(run: str, task: str = "main") -> Path:
    return run_dir(run) / "out" / f"{task}.log"


def kept(run: str, task: str = "main") -> int:
    """Bytes of the disk that the log holds."""
    return log_of(run, task).stat().st_blocks * 512


def printed(run: str, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(agentbox_argv("logs", *args, run), env=agentbox_env(), capture_output=True, timeout=60)


def test_endless_output_is_bounded() -> None:
    run = start(*ENDLESS, options=("--output-limit", "1m"))
    wait_for(lambda: log_of(run).stat().st_size > 100 * LIMIT, 60, "it does not print")
    agentbox("kill", run, check=0)
    assert agentbox("wait", run).returncode == 137
    size = log_of(run).stat().st_size
    assert kept(run) <= LIMIT
    done = printed(run)
    assert set(done.stdout) == set(b"x\n") and LIMIT // 4 <= len(done.stdout) <= LIMIT
    (task,) = inspect(run)["task_list"]
    assert task["output_dropped"] + len(done.stdout) == size
    assert f"{task['output_dropped']} bytes of output were dropped here" in done.stderr.decode()
    agentbox("verify", run, check=0)


def test_what_is_kept_is_the_end_as_it_was_written() -> None:
    run = start(*PRINTER, options=("--output-limit", "1m"))
    agentbox("wait", run, check=0)
    whole = b"".join(b"%099d\n" % n for n in range(100_000))
    done = printed(run)
    assert whole.endswith(done.stdout) and len(done.stdout) >= LIMIT // 4
    assert printed(run, "--tail", "3").stdout == b"".join(b"%099d\n" % n for n in range(99_997, 100_000))
    far = printed(run, "--tail", "99999")
    assert (far.stdout, far.stderr) == (done.stdout, done.stderr)


@pytest.mark.parametrize("options", [(), ("--output-limit", "0"), ("--output-limit", "16m")])
def test_less_than_the_bound_is_kept_whole(options: tuple[str, ...]) -> None:
    run = start(*PRINTER, options=options)
    agentbox("wait", run, check=0)
    done = printed(run)
    assert done.stdout == b"".join(b"%099d\n" % n for n in range(100_000)) and not done.stderr
    assert inspect(run)["task_list"][0]["output_dropped"] == 0


def test_following_goes_on_over_what_was_dropped() -> None:
    """A follower prints whole lines in their order, whatever is dropped under its feet, and no byte of a hole."""
    run = start(*PRINTER, options=("--output-limit", "256k"))
    done = printed(run, "-f")
    assert b"\0" not in done.stdout and done.stdout.endswith(b"%099d\n" % 99_999)
    numbers = [int(line) for line in done.stdout.splitlines() if len(line) == 99]
    assert numbers == sorted(numbers)


def test_each_task_has_its_own_bound(tmp_path: Path) -> None:
    run = start("sleep", "900")
    agentbox("spawn", run, "-d", "--task", "loud", "--output-limit", "256k", "--", *ENDLESS, check=0)
    wait_for(lambda: log_of(run, "loud").stat().st_size > 50 * LIMIT, 60)
    agentbox("kill", run, check=0)
    wait_for(lambda: all(task["outcome"] for task in inspect(run)["task_list"]))
    dropped = {task["task_id"]: task["output_dropped"] for task in inspect(run)["task_list"]}
    assert dropped["main"] == 0 and dropped["loud"] > 40 * LIMIT
    assert kept(run, "loud") <= LIMIT


def test_descendants_are_bounded_while_an_abort_waits(tmp_path: Path) -> None:
    """The command has left at SIGTERM, what it started prints on through the grace of the abort."""
    script = f"trap '' TERM; {' '.join(map(repr, ENDLESS[:1]))} -c \"$0\" & trap - TERM; wait"
    run = start("sh", "-c", script, ENDLESS[2], options=("--output-limit", "1m"))
    wait_for(lambda: log_of(run).stat().st_size > LIMIT, 60)
    with subprocess.Popen(
        agentbox_argv("abort", run, "--grace", "0s", "--term", "4s", "--json"),
        env=agentbox_env(),
        stdout=subprocess.PIPE,
    ) as abort:
        wait_for(lambda: log_of(run).stat().st_size > 500 * LIMIT or abort.poll() is not None, 60)
        assert json.loads(abort.communicate()[0])[0]["proof"] == "empty"
    assert agentbox("wait", run).returncode != 0
    assert kept(run) <= LIMIT


def test_hole_of_the_agents_own_ends_no_reader(tmp_path: Path) -> None:
    """It may do with its own stdout what it likes."""
    code = "import os\nos.write(1, b'a\\n')\nos.ftruncate(1, 1 << 40)\nos.write(1, b'b\\n')"
    run = start(sys.executable, "-c", code)
    agentbox("wait", run, check=0)
    seen = printed(run).stdout
    assert seen.replace(b"\0", b"") == b"a\nb\n" and len(seen) < LIMIT
    assert printed(run, "--tail", "1").stdout.endswith(b"b\n")


@pytest.mark.parametrize(
    ("options", "word"), [(("--output-limit", "1m"), "-d"), (("-d", "--output-limit", "1k"), "256k")]
)
def test_bounds_that_are_none(options: tuple[str, ...], word: str) -> None:
    one_line(agentbox("run", "--run-id", new_id(), *options, "--", "true", check=125), word)
    assert not (Path(os.environ["AGENTBOX_HOME"]) / "runs").exists()
