"""The gate: Python and sh give the same answers, also to a control file that was tampered with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox.control import orders
from sandbox.harness.beat import marks
from sandbox.kernel.procfs import started_at
from sandbox.manifest.home import Home, RunDir
from tests.beds.base import TREE
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

HARNESS = TREE / "sandbox" / "harness"
GATES = {
    "sh": ["sh", str(HARNESS / "gate.sh")],
    "python": [sys.executable, "-I", "-S", str(HARNESS / "gate.py")],
    "agentbox": agentbox_argv(),
}


@pytest.fixture(params=sorted(GATES))
def gate(request: pytest.FixtureRequest) -> list[str]:
    return GATES[request.param]


@pytest.fixture
def run(home: Path) -> RunDir:
    made = Home(str(home)).ensure().run_dir("r1").create()
    orders.create_order(made.control, by="test")
    orders.create_order(made.task_order("t1"), by="test")
    return made


def environment(run: RunDir, **other: str) -> dict[str, str]:
    named = {"AGENTBOX_CONTROL": run.control, "AGENTBOX_BEAT": run.beat("t1"), "AGENTBOX_TASK_ID": "t1"}
    return {**agentbox_env(), **named, **other}


def ask(
    gate: list[str], run: RunDir, *words: str, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    argv = [*gate, *(words or ("gate", "Bash"))]
    return subprocess.run(argv, env=environment(run, **env), cwd=cwd, capture_output=True, text=True, timeout=20)


def nothing(run: RunDir) -> None:
    return


def replace(text: str) -> Callable[[RunDir], None]:
    def tamper(run: RunDir) -> None:
        os.unlink(run.control)
        Path(run.control).write_text(text)

    return tamper


def fifo(run: RunDir) -> None:
    os.unlink(run.control)
    os.mkfifo(run.control)


def directory(run: RunDir) -> None:
    os.unlink(run.control)
    os.mkdir(run.control)


def symlink(run: RunDir) -> None:
    kept = run.control + ".real"
    os.rename(run.control, kept)
    os.symlink(kept, run.control)


def missing(run: RunDir) -> None:
    os.unlink(run.control)


def other_owner(run: RunDir) -> None:
    os.chown(run.control, 12345, 12345)


def emergency(run: RunDir) -> None:
    Path(run.path).parents[1].joinpath("EMERGENCY_STOP").touch()


def stopped(run: RunDir) -> None:
    orders.write_order(run.control, "STOP", reason="enough of it")


def task_stopped(run: RunDir) -> None:
    orders.write_order(run.task_order("t1"), "STOP", reason="this one")


def task_order_gone(run: RunDir) -> None:
    os.unlink(run.task_order("t1"))


def changed(run: RunDir) -> None:
    Path(run.steer("t1")).write_text('{"delta": "other"}\n')


ANSWERS: list[tuple[str, Callable[[RunDir], None], int, str]] = [
    ("run", nothing, 0, ""),
    ("stop", stopped, 2, "enough of it"),
    ("task stop", task_stopped, 2, "this one"),
    ("emergency stop", emergency, 2, "emergency stop"),
    ("missing", missing, 2, "control: No such file"),
    ("task order missing", task_order_gone, 2, "t1: No such file"),
    ("empty", replace(""), 2, "holds no order"),
    ("garbage", replace("\x00\xff RUN 1\n"), 2, "holds no order"),
    ("no generation", replace("RUN\n"), 2, "holds no order"),
    ("words after", replace("RUN 1 and more\n"), 2, "holds no order"),
    ("lower case", replace("run 1\n"), 2, "holds no order"),
    ("huge generation", replace("RUN " + "9" * 30 + "\n"), 2, "holds no order"),
    ("no newline", replace("RUN 7"), 0, ""),
    ("changed", changed, 0, ""),
    ("changed, no beat", changed, 0, ""),
    ("fifo", fifo, 2, "not a regular file"),
    ("directory", directory, 2, "not a regular file"),
    ("symlink", symlink, 2, "control: "),
    pytest.param(
        "other owner", other_owner, 2, "owned by uid 12345", marks=pytest.mark.skipif(os.geteuid() != 0, reason="root")
    ),
]


@pytest.mark.parametrize(("name", "tamper", "code", "said"), ANSWERS)
def test_every_gate_gives_this_answer(
    gate: list[str], run: RunDir, name: str, tamper: Callable[[RunDir], None], code: int, said: str, tmp_path: Path
) -> None:
    tamper(run)
    here = tmp_path / "here"
    here.mkdir()
    done = ask(gate, run, cwd=here, **({"AGENTBOX_BEAT": ""} if name.endswith("no beat") else {}))
    assert list(here.iterdir()) == [], "the gate leaves something where the worker stands"
    assert done.stdout == ('{"delta": "other"}\n' if name == "changed" else "")
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert (done.stderr == "") == (code == 0)
    order = orders.read_order(run.control)
    if name not in ("emergency stop", "task stop", "task order missing"):
        assert (order.word == "STOP") == (code == 2), "the gate and the launcher read the same file differently"


def test_outside_of_a_box_nothing_holds(gate: list[str]) -> None:
    env = {name: value for name, value in agentbox_env().items() if not name.startswith("AGENTBOX_C")}
    assert subprocess.run([*gate, "gate"], env=env, timeout=20).returncode == 0


def test_marks_are_the_same(run: RunDir) -> None:
    for gate in GATES.values():
        assert ask(gate, run, "gate", "Bash").returncode == 0
        assert ask(gate, run, "tick", "Bash", "42").returncode == 0
        assert ask(gate, run, "tick", "a name; $(with) everything\n", "-1").returncode == 0
    seen = marks(run.beat("t1"))
    assert [(m.word, m.tokens) for m in seen] == [("call", 0), ("tick", 42), ("tick", 0)] * 3
    assert {m.name for m in seen if m.tokens == 42 or m.word == "call"} == {"Bash"}
    assert sorted(m.at for m in seen) == [m.at for m in seen]


def test_a_shell_of_busybox_marks_as_well(run: RunDir, tmp_path: Path) -> None:
    """Its date(1) knows no fractions of a second."""
    busybox = shutil.which("busybox")
    if not busybox:
        pytest.skip("no busybox")
    for name in ("sh", "date", "stat", "sleep"):
        (tmp_path / name).symlink_to(busybox)
    gate = [str(tmp_path / "sh"), str(HARNESS / "gate.sh")]
    start = int(time.time())
    for words in (("gate", "Bash"), ("tick", "Bash", "7")):
        assert ask(gate, run, *words, PATH=str(tmp_path)).returncode == 0
    seen = marks(run.beat("t1"))
    assert [(m.word, m.name, m.tokens) for m in seen] == [("call", "Bash", 0), ("tick", "Bash", 7)]
    assert all(start <= m.at <= time.time() for m in seen)


def test_a_shell_tells_the_time_by_itself(run: RunDir, tmp_path: Path) -> None:
    """With the time of the boot it starts no other program; with nonsense there, or no uptime, it asks date(1)."""
    named = {"AGENTBOX_BOOT": str(int(started_at(0) * 100))}
    shell = str(shutil.which("sh"))
    for path, boot in ((str(tmp_path), named["AGENTBOX_BOOT"]), (os.environ["PATH"], ""), (os.environ["PATH"], "7x")):
        before = time.time()
        env = {"PATH": path, "AGENTBOX_BOOT": boot}
        assert ask([shell, str(HARNESS / "gate.sh")], run, "gate", "Bash", **env).returncode == 0
        mark = marks(run.beat("t1"))[-1]
        assert (mark.word, mark.name) == ("call", "Bash")
        assert before - 0.1 <= mark.at <= time.time() + 0.1
    assert len(marks(run.beat("t1"))) == 3


def test_no_call_begins_unseen_once_a_pause_is_ordered(gate: list[str], run: RunDir, tmp_path: Path) -> None:
    """Whoever orders and then reads the marks sees each call that is still to be made: none passes between the two."""
    script = f'cd "{tmp_path}"; while "$@" gate x; do [ ! -e over ] || exit 0; "$@" tick x; done'
    process = subprocess.Popen(["sh", "-c", script, "sh", *gate], env=environment(run))
    try:
        for _ in range(5 if gate == GATES["agentbox"] else 25):
            passed = len(marks(run.beat("t1")))
            wait_for(lambda passed=passed: len(marks(run.beat("t1"))) > passed)
            orders.write_order(run.control, "PAUSE")
            seen = marks(run.beat("t1"))
            wait_for(lambda: marks(run.beat("t1"))[-1].word == "quiet")
            later = [mark.word for mark in marks(run.beat("t1"))[len(seen) :]]
            if seen[-1].word == "call":
                later = later[1:] if later[0] == "tick" else later
            assert later in ([], ["quiet"], ["call", "quiet"]), "a call went on that nobody saw"
            orders.write_order(run.control, "RUN")
        (tmp_path / "over").touch()
        assert process.wait(30) == 0
    finally:
        orders.order_stop(run.control, reason="over", by="test")  # a gate that holds leaves
        process.kill()
        process.wait()


def test_a_pause_holds_and_a_resume_lets_go(gate: list[str], run: RunDir) -> None:
    orders.write_order(run.control, "PAUSE")
    process = subprocess.Popen([*gate, "gate", "Edit"], env=environment(run))
    try:
        wait_for(lambda: [m.word for m in marks(run.beat("t1"))] == ["quiet"])
        assert process.poll() is None
        orders.write_order(run.control, "RUN")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert [m.word for m in marks(run.beat("t1"))] == ["quiet", "call"]


def test_a_stop_reaches_a_gate_that_holds(gate: list[str], run: RunDir) -> None:
    orders.write_order(run.task_order("t1"), "PAUSE")
    process = subprocess.Popen([*gate, "gate", "Edit"], env=environment(run), stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: [m.word for m in marks(run.beat("t1"))] == ["quiet"])
        orders.write_order(run.control, "STOP", reason="over")
        assert "over" in process.communicate(timeout=20)[1]
        assert process.returncode == 2
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["fifo", "directory", "full", "symlink"])
def test_a_beat_that_cannot_be_written_holds_nobody_up(gate: list[str], run: RunDir, kind: str, tmp_path: Path) -> None:
    beat = Path(run.beat("t1"))
    if kind == "fifo":
        os.mkfifo(beat)
    elif kind == "directory":
        beat.mkdir()
    elif kind == "full":
        beat.symlink_to("/dev/full")
    else:
        beat.symlink_to(tmp_path / "elsewhere")
    assert ask(gate, run).returncode == 0
    assert not (tmp_path / "elsewhere").exists()
    assert marks(str(beat)) == []


def test_a_delta_is_delivered_once_whatever_gates_ask(run: RunDir) -> None:
    Path(run.steer("t1")).write_text('{"delta": "one"}\n{"delta": "two"}\n{"delta": "half')
    asked = [
        subprocess.Popen([*gate, "gate", "x"], env=environment(run), stdout=subprocess.PIPE, text=True)
        for gate in GATES.values()
        for _ in range(4)
    ]
    said = "".join(process.communicate(timeout=30)[0] for process in asked)
    assert {process.returncode for process in asked} == {0}
    assert sorted(said.splitlines()) == ['{"delta": "one"}', '{"delta": "two"}']


def test_their_help(home: Path) -> None:
    for verb in ("gate", "tick"):
        assert f"usage: agentbox {verb}" in agentbox(verb, "--help", check=0).stdout
