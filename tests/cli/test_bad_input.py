"""Wrong words on the command line: one line that says what, why and what to do, the documented status, nothing made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.runs import no_runs_left, one_line, records, row, run_dir, start
from tests.support import agentbox

LONG = "x" * 300
BAD_IDS = {
    "empty": "",
    "dot": ".",
    "dots": "..",
    "newline": "a\nb",
    "long": LONG,
    "accent": "é",
    "slash": "a/b",
    "escape": "\x1b[31m",
    "space": "a b",
    "star": "*",
}
VERBS = ("kill", "abort", "wait", "inspect", "tree", "logs", "manifest", "verify", "spawn")


@dataclass(frozen=True)
class Case:
    """`argv` of agentbox, its exit status, and words that its error line holds."""

    name: str
    argv: tuple[str, ...]
    code: int
    words: tuple[str, ...] = ()


def _with_run(verb: str, run: str) -> tuple[str, ...]:
    return (verb, run, "--", "true") if verb == "spawn" else (verb, run)


def _status(verb: str, code: int) -> int:
    """Verbs that exit as a command did give 125 for all that goes wrong with agentbox itself."""
    return 125 if verb in ("spawn", "wait", "run") else code


IDS = [
    Case(f"{verb}-{name}", _with_run(verb, text), _status(verb, 2), ("not allowed", "A-Z a-z"))
    for verb in VERBS
    for name, text in BAD_IDS.items()
    if verb in ("kill", "spawn", "inspect") or name in ("empty", "dots", "newline")
]
UNKNOWN = [
    Case(f"{verb}-unknown", _with_run(verb, "nosuch"), _status(verb, 3), ("no such run: nosuch", "agentbox ps"))
    for verb in VERBS
]
NO_RUN = [Case(f"{verb}-of-none", (verb,), 2) for verb in ("kill", "abort", "inspect", "tree", "logs", "verify")]
DASHES = [
    Case(f"{verb}-{name}", (verb, text), _status(verb, 2))
    for verb in ("kill", "abort", "inspect", "tree", "wait", "logs", "verify")
    for name, text in (("rf", "-rf"), ("double-dash", "--"), ("option", "--nosuch"))
]


def _run(name: str, *options: str, code: int = 125, words: tuple[str, ...] = ()) -> Case:
    return Case(f"run-{name}", ("run", *options, "--", "true"), code, words)


OPTIONS = [
    Case("run-nothing", ("run",), 125, ("no command", "-- COMMAND")),
    Case("run-no-command", ("run", "--"), 125, ("no command",)),
    Case("spawn-no-command", ("spawn", "nosuch", "--"), 125, ("no command",)),
    Case("spawn-nothing", ("spawn",), 125, ("no command",)),
    Case("spawn-no-run", ("spawn", "--", "true"), 125, ("RUN",)),
    _run("unknown-option", "--nosuch", words=("--nosuch", "agentbox run --help")),
    _run("shortened-option", "--time", "5", words=("--time",)),
    *[_run(f"timeout-{text or 'empty'}", f"--timeout={text}", words=("duration",)) for text in ("x", "", "-1", "5x")],
    *[
        _run(f"timeout-{text}", f"--timeout={text}", words=("duration",))
        for text in ("nan", "inf", "1e9", "9999999999h")
    ],
    *[_run(f"memory-{text or 'empty'}", f"--memory={text}", words=("size",)) for text in ("x", "", "0", "-1", "1e9")],
    _run("memory-huge", "--memory=99999999999999999999g", words=("size",)),
    *[
        _run(f"cpus-{text or 'empty'}", f"--cpus={text}", words=("processors",))
        for text in ("x", "", "0", "nan", "inf")
    ],
    *[_run(f"pids-{text or 'empty'}", f"--pids={text}", words=("count",)) for text in ("x", "", "0", "-1", "1.5", "²")],
    _run("pids-huge", "--pids=99999999999", words=("count",)),
    *[_run(f"label-{text or 'empty'}", f"--label={text}", words=("label",)) for text in ("x", "", "=", "=v")],
    *[_run(f"env-{text or 'empty'}", f"--env={text}", words=("variable",)) for text in ("", "=v", "1a=b", "a-b=c")],
    _run("limits", "--limits=x", words=("--limits",)),
    _run("on-exit", "--on-exit=x", words=("--on-exit",)),
    _run("backend", "--backend=x", words=("backend", "cgroup, systemd, docker")),
    _run("backend-empty", "--backend=", words=("backend",)),
    _run("image-empty", "--image=", words=("--image",)),
    _run("image-and-cgroup", "--image=x", "--backend=cgroup", words=("--image", "--backend")),
    _run("timeout-of-none", "--timeout", words=("--timeout",)),
    *[_run(f"run-id-{name}", f"--run-id={text}", words=("run id", "not allowed")) for name, text in BAD_IDS.items()],
    _run("run-id-rf", "--run-id=-rf", words=("run id", "not allowed")),
    *[_run(f"task-{name}", f"--task={text}", words=("task id", "not allowed")) for name, text in BAD_IDS.items()],
    Case("kill-all-and-run", ("kill", "--all", "x"), 2, ("--all",)),
    Case("kill-all-and-task", ("kill", "--all", "--task", "x"), 2, ("--all",)),
    Case("kill-grace", ("kill", "--grace", "5", "x"), 2, ("--grace",)),
    Case("kill-reason-of-none", ("kill", "x", "--reason"), 2, ("--reason",)),
    Case("abort-grace", ("abort", "--grace", "x", "r"), 2, ("duration",)),
    Case("abort-term", ("abort", "--term=-1", "r"), 2, ("duration",)),
    Case("logs-tail", ("logs", "--tail", "x", "r"), 2, ("--tail",)),
    Case("logs-tail-negative", ("logs", "--tail", "-1", "r"), 2, ("--tail",)),
    Case("ps-argument", ("ps", "x"), 2, ("x", "agentbox ps --help")),
    Case("ps-option", ("ps", "--nosuch"), 2, ("--nosuch", "agentbox ps --help")),
    Case("inspect-two", ("inspect", "a", "b"), 2),
    Case("verb", ("nosuch",), 2, ("nosuch", "agentbox --help")),
    Case("verb-empty", ("",), 2),
    Case("option", ("--nosuch",), 2, ("--nosuch",)),
]


@pytest.mark.parametrize("case", [*IDS, *UNKNOWN, *NO_RUN, *DASHES, *OPTIONS], ids=lambda case: case.name)
def test_one_line_and_nothing_made(case: Case, home: Path) -> None:
    done = agentbox(*case.argv)
    assert done.returncode == case.code, done.stderr
    assert done.stdout == ""
    one_line(done, *case.words)
    no_runs_left()


class TestOfARunThatIsThere:
    """With two live runs, one's id the beginning of the other's, which live on whatever is wrong in what was typed."""

    @pytest.fixture(autouse=True)
    def two(self, home: Path, run_id: str) -> Iterator[None]:
        self.prefix, self.one, self.ten = run_id, f"{run_id}-1", f"{run_id}-10"
        for run in (self.one, self.ten):
            start("sleep", "900", options=("--run-id", run))
        yield
        assert [row(run)["state"] for run in (self.one, self.ten)] == ["running", "running"]
        agentbox("kill", "--all", check=0)

    @pytest.mark.parametrize("verb", VERBS)
    def test_ambiguous_prefix(self, verb: str) -> None:
        done = agentbox(*_with_run(verb, self.prefix), check=_status(verb, 2))
        one_line(done, "ambiguous", f"{self.one}, {self.ten}")

    @pytest.mark.parametrize("task", ["nosuch", "..", "", "a\nb"])
    def test_kill_of_a_task_that_is_none(self, task: str) -> None:
        code = 3 if task == "nosuch" else 2
        one_line(agentbox("kill", self.one, f"--task={task}", check=code), "task")

    def test_run_id_is_taken(self) -> None:
        one_line(agentbox("run", "--run-id", self.one, "--", "true", check=125), self.one, "taken", "--run-id")
        one_line(agentbox("run", "-d", "--run-id", self.one, "--", "true", check=125), self.one, "taken")

    def test_task_id_is_taken(self) -> None:
        one_line(agentbox("spawn", self.one, "--task", "main", "--", "true", check=125), "main", "taken", "--task")
        agentbox("spawn", self.one, "--task", "t", "--", "true", check=0)
        one_line(agentbox("spawn", self.one, "--task", "t", "--", "true", check=125), "taken")
        one_line(agentbox("spawn", "-d", self.one, "--task", "t", "--", "true", check=125), "taken")

    def test_spawn_of_a_command_that_is_none(self) -> None:
        one_line(agentbox("spawn", self.one, "--", "no-such-command", check=127), "no-such-command")
        assert not [record for record in records(self.one) if record["task_id"] not in ("main", None)]

    @pytest.mark.parametrize("task", ["nosuch", "..", ""])
    def test_logs_of_a_task_that_is_none(self, task: str) -> None:
        one_line(agentbox("logs", self.one, task, check=2))

    def test_logs_of_a_foreground_task(self) -> None:
        agentbox("spawn", self.one, "--task", "t", "--", "true", check=0)
        one_line(agentbox("logs", self.one, "t", check=2), "-d")

    def test_prefix_that_is_an_id(self) -> None:
        assert row(self.one)["run_id"] == self.one
        assert agentbox("manifest", self.one, check=0).stdout == (run_dir(self.one) / "manifest.jsonl").read_text()


def test_spawn_into_a_run_that_has_ended(home: Path, run_id: str) -> None:
    agentbox("run", "--run-id", run_id, "--", "true", check=0)
    one_line(agentbox("spawn", run_id, "--", "true", check=75), run_id, "start a new run")
    one_line(agentbox("spawn", "-d", run_id, "--", "true", check=75), run_id)


def test_stop_of_a_run_that_has_ended_is_accepted(home: Path, run_id: str) -> None:
    agentbox("run", "--run-id", run_id, "--", "true", check=0)
    for verb in ("kill", "abort", "kill"):
        done = agentbox(verb, run_id, check=0)
        assert done.stderr == "" and "nothing was alive" in done.stdout
    agentbox("wait", run_id, check=0)


def test_order_to_stop_of_an_ended_run_does_not_reach_the_next(home: Path, run_id: str) -> None:
    """The id of a run is never given again, so neither is its order."""
    agentbox("run", "--run-id", run_id, "--", "true", check=0)
    agentbox("abort", run_id, check=0)
    one_line(agentbox("run", "--run-id", run_id, "--", "true", check=125), "taken")
    agentbox("run", "--run-id", f"{run_id}-2", "--", "true", check=0)


def test_without_a_verb_is_the_help(home: Path, run_id: str) -> None:
    done = agentbox(check=2)
    assert done.stdout.startswith("Usage: agentbox") and done.stderr == ""


@pytest.mark.parametrize("option", ["--run-id", "--task"])
def test_id_that_is_the_name_of_a_file_of_every_cgroup(home: Path, option: str) -> None:
    done = agentbox("run", "--backend", "cgroup", option, "cgroup.procs", "--", "true", check=125)
    one_line(done, "cgroup.procs", f"choose another {option}")
    (found,) = json.loads(agentbox("ps", "-a", "--json", check=0).stdout)
    assert found["state"] == "not started"
    agentbox("kill", "--all", check=0)
