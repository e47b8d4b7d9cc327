"""`top` in a real terminal: its frames, its keys, and the terminal given back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox.top.keys import decode
from sandbox.top.sample import Frame, Row
from sandbox.top.view import Screen, lines
from tests.beds.base import TREE
from tests.cli.runs import inspect, new_id, one_line
from tests.support import agentbox, is_alive, wait_for
from tests.top.terminal import PROMPT, Terminal

GATE = TREE / "sandbox" / "harness" / "gate.sh"
CALL = f"sh {GATE} gate Bash:one; exec sleep 900"


@pytest.fixture
def terminal(home: Path, tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path)
    try:
        one.open()
        yield one
    finally:
        one.close()


@pytest.fixture
def fleet(home: Path) -> Iterator[Callable[..., str]]:
    """`fleet("w1", "w2")` starts a run with these tasks, each in a call, beside its main one without a gate."""
    runs: list[str] = []

    def start(*tasks: str) -> str:
        runs.append(new_id())
        agentbox("run", "-d", "--run-id", runs[-1], "--backend", "cgroup", "--", "sleep", "900", check=0)
        for task in tasks:
            agentbox("spawn", runs[-1], "-d", "--task", task, "--", "sh", "-c", CALL, check=0)
        return runs[-1]

    yield start
    for run in runs:
        agentbox("kill", run)
        agentbox("wait", run)


def order(home: Path, run: str, task: str = "") -> str:
    path = home / "runs" / run / "ctl" / (f"tasks/{task}" if task else "control")
    return path.read_text().split()[0]


def pids(run: str) -> dict[str, int]:
    return {task["task_id"]: task["pid"] for task in inspect(run)["task_list"]}


def test_one_frame_in_80_columns(fleet: Callable[..., str], home: Path) -> None:
    run = fleet("w1", "a-worker-with-a-name-that-is-far-too-long-for-any-column-of-it")
    beat = home / "runs" / run / "beat" / "w1"
    wait_for(lambda: beat.exists() and beat.read_text())
    with beat.open("a") as file:
        file.write("1772446400.000 call 1 \x1b[2J\x1b]0;owned\x07 0\n")
    shown = agentbox("top", "--once", check=0, env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown and "\x07" not in shown
    title, header, *rows = shown.splitlines()
    assert "1 run, 3 tasks, 3 processes  emergency stop off" in title
    assert header.split() == ["RUN", "/", "TASK", "STATE", "BOUNDARY", "PROC", "CPU", "MEM", "AGE", "BRANCH"]
    assert rows[0].split()[:2] == [run, "running"] and rows[1].split()[:4] == ["main", "running", "no", "gate"]
    assert rows[2].split()[:3] == ["w1", "in", "call"] and rows[3].startswith("  a-worker-with-a-n… in call")
    assert all("%" in row for row in rows), shown


def test_keys_act_on_what_is_selected(terminal: Terminal, fleet: Callable[..., str], home: Path) -> None:
    run = fleet("w1", "w2")
    before = terminal.settings()
    found = pids(run)
    terminal.top()
    terminal.shows(run, "w1", "w2", "Bash:one", "3 processes")
    terminal.press("p")
    wait_for(lambda: order(home, run) == "PAUSE")
    terminal.shows(f"pause {run}: ordered; no gate seen, may not hold: main", "pausing")
    terminal.press("r")
    wait_for(lambda: order(home, run) == "RUN")
    terminal.press("r")
    terminal.shows(f"resume {run}: was not paused")
    terminal.press("Down", "j", "K")
    terminal.shows(f"press K once more: task w1 of {run} is killed")
    terminal.press("k", "K", "A")
    terminal.shows(f"press A once more: task main of {run} is aborted")
    terminal.press("j")
    terminal.shows("q quit")
    assert all(map(is_alive, found.values())), "a key that ends something acts the second time alone"
    terminal.press("K", "K")
    terminal.shows(f"kill {run} task w1: proven empty", "killed", "2 processes")
    assert not is_alive(found["w1"]) and is_alive(found["w2"]) and is_alive(found["main"])
    terminal.press("Up", "g", "A", "A")
    terminal.shows(f"abort {run} …")
    wait_for(lambda: order(home, run) == "STOP")
    terminal.press("K", "K")  # a kill need not wait for the abort's grace
    terminal.shows(f"kill {run}: proven empty", "0 processes", "stopped")
    assert not is_alive(found["w2"]) and not is_alive(found["main"])
    terminal.press("q")
    terminal.shows(PROMPT)
    assert terminal.settings() == before


def test_a_step_from_nothing_selects_the_first_row(terminal: Terminal, fleet: Callable[..., str], home: Path) -> None:
    """Nothing is selected once the run that was is gone; the row at the top is the whole run's."""
    gone, run = fleet(), fleet("w1")
    terminal.top()
    terminal.shows(gone, run, "3 processes")
    top, other = sorted((gone, run), key=terminal.screen().index)
    terminal.press("g")
    agentbox("kill", top, check=0)
    agentbox("wait", top)
    shutil.rmtree(home / "runs" / top)
    wait_for(lambda: top not in terminal.screen())
    terminal.press("r")
    terminal.shows("nothing is selected")
    terminal.press("j", "K", "K")
    terminal.shows(f"kill {other}: proven empty")


def test_the_emergency_stop_is_a_key_pressed_twice(
    terminal: Terminal, fleet: Callable[..., str], home: Path, bystander: subprocess.Popen[bytes]
) -> None:
    runs = [fleet("w1"), fleet()]
    found = [pid for run in runs for pid in pids(run).values()]
    terminal.top()
    terminal.shows(*runs, "3 processes")
    terminal.press("E")
    terminal.shows("press E once more")
    terminal.press("j")
    terminal.shows("q quit")
    assert not (home / "EMERGENCY_STOP").exists() and all(map(is_alive, found))
    terminal.press("E", "E")
    terminal.shows("emergency stop: nothing is alive", "emergency stop ON", "0 processes")
    assert (home / "EMERGENCY_STOP").exists() and not any(map(is_alive, found))
    terminal.press("q")
    agentbox("estop", "--lift", check=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_is_given_back_after_a_signal(terminal: Terminal, home: Path, number: int) -> None:
    before = terminal.settings()
    terminal.top()
    os.kill(terminal.pid_of_top(), number)
    terminal.shows(PROMPT)
    terminal.type("echo status $?")
    terminal.shows(f"status {128 + number}")
    assert terminal.settings() == before


def test_a_task_that_is_killed_from_outside(terminal: Terminal, fleet: Callable[..., str]) -> None:
    """The screen goes on, shows it, and the terminal is given back; also when stopped by Ctrl+Z meanwhile."""
    run = fleet("w1")
    before = terminal.settings()
    terminal.top()
    terminal.shows("w1", "2 processes")
    os.kill(pids(run)["w1"], signal.SIGKILL)
    terminal.shows("signaled", "1 process ")
    terminal.press("C-z")
    terminal.shows("Stopped")
    assert terminal.settings() == before
    terminal.type("fg")
    terminal.shows("signaled", "1 process ")
    terminal.press("C-c")
    terminal.shows(PROMPT)
    assert terminal.settings() == before


def test_leaving_waits_for_what_was_begun(terminal: Terminal, fleet: Callable[..., str], home: Path) -> None:
    run = fleet()
    terminal.top()
    terminal.shows(run)
    terminal.press("A", "A")
    wait_for(lambda: order(home, run) == "STOP")
    terminal.press("q")
    terminal.shows(f"waiting for the end of: abort {run}")
    agentbox("kill", run, check=0)
    terminal.type("echo status $?")
    terminal.shows("status 0")


def test_where_there_is_no_terminal(home: Path) -> None:
    done = agentbox("top")
    assert done.returncode == 2
    one_line(done, "top --once")
    one_line(agentbox("top", "--once", "--interval", "0"), "interval")
    assert "no runs" in agentbox("top", "--once", check=0).stdout


def test_a_screen_that_is_too_small_shows_the_selected_row() -> None:
    rows = [Row("r1", None, "running"), *(Row("r1", f"w{n:02d}", "in call") for n in range(64))]
    frame = Frame(0.0, rows)
    for selected in (None, ("r1", None), ("r1", "w40"), ("r1", "w63"), ("r1", "gone")):
        for width, height in ((80, 24), (10, 3), (200, 8)):
            shown = [line.plain for line in lines(frame, Screen(selected), width, height)]
            assert len(shown) <= max(height, 4) and {len(line) for line in shown if line} == {max(width, 40)}
            assert selected in (None, ("r1", "gone")) or any(line.split()[0] == (selected[1] or "r1") for line in shown)


def test_what_does_not_fit_or_is_not_there_is_not_misleading() -> None:
    rows = [Row("r1", "w1", "in call", branch=branch) for branch in ("agent/r1/w1", "agent/r1/a-long-worker", "main")]
    shown = [line.plain.split()[-1] for line in lines(Frame(0.0, rows), None, 80, None)[2:]]
    assert shown == ["…/r1/w1", "…g-worker", "main"]
    for emergency in ("ON", "could not tell"):
        (_, _, nothing) = lines(Frame(0.0, emergency=emergency), None, 80, None)
        assert "nothing starts until `agentbox estop --lift`" in nothing.plain and "run --" not in nothing.plain


def test_keys_are_told_from_the_bytes_that_a_terminal_sends() -> None:
    assert decode(b"\x1b[A\x1bOBpK") == ["up", "down", "p", "K"]
    assert decode(b"j\x1b[200~K") == ["down"], "of a sequence that is not known nothing is taken for a key"
    assert decode(b"\x03") == ["q"] and decode(b"\xff\xfe") == ["\xff", "\xfe"]
