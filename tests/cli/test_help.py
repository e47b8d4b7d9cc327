"""Each verb has its help, and each option that the help names is taken."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from sandbox import __version__
from tests.cli.runs import inspect, pids_of, records, row, start
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

VERBS = [
    *("run", "spawn", "kill", "abort", "ps", "inspect", "tree", "logs", "wait", "manifest", "verify", "doctor"),
    *("report", "top"),
]
OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def help_of(verb: str) -> str:
    return agentbox(verb, "--help", check=0).stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help(verb: str, home: Path) -> None:
    done = agentbox(verb, "--help", check=0)
    assert done.stderr == ""
    assert f"agentbox {verb}" in done.stdout.splitlines()[0]
    assert agentbox(verb, "-h", check=0).stdout == done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert not home.exists()


def test_help_of_all(home: Path) -> None:
    text = agentbox("--help", check=0).stdout
    listed = re.findall(r"^  ([a-z-]+) ", text.partition("Commands:")[2], re.MULTILINE)
    assert set(VERBS) <= set(listed)
    for verb in listed:
        assert agentbox(verb, "--help").returncode == 0, verb
    assert agentbox("-h", check=0).stdout == text


def test_version(home: Path) -> None:
    assert agentbox("--version", check=0).stdout == f"agentbox {__version__}\n"


# Each documented option of run and spawn, with values that work on every machine.
LAUNCH = {
    "-d": [],
    "--detach": [],
    "--run-id": ["ID"],
    "--task": ["worker"],
    "--backend": ["cgroup"],
    "--label": ["project=web"],
    "--env": ["NAME=value"],
    "--limits": ["best-effort"],
    "--memory": ["2g"],
    "--cpus": ["1.5"],
    "--pids": ["200"],
    "--oom-group": [],
    "--timeout": ["2h"],
    "--allowance": ["10m"],
    "--on-exit": ["leave"],
    "--no-hooks": [],
}
ELSEWHERE = {"--help", "-h", "--image", "--worktree", "--base", "--output-limit", "--own-dirs"}


def test_every_option_of_run_is_known_to_this_test() -> None:
    text = help_of("run").partition("options:")[2].partition("containers")[0]
    named = {word for line in text.splitlines() if line.startswith("  -") for word in OPTION.findall(line[:24])}
    assert set(LAUNCH) <= named
    left_over = named - set(LAUNCH) - ELSEWHERE
    assert not left_over, f"options without a test: {left_over}"


@pytest.mark.parametrize("option", LAUNCH)
def test_option_of_run(option: str, home: Path, run_id: str) -> None:
    values = [run_id if value == "ID" else value for value in LAUNCH[option]]
    more = ["--limits=best-effort"] if option in ("--memory", "--cpus", "--pids", "--oom-group") else []
    done = agentbox("run", option, *values, *more, "--", "true", check=0)
    (run,) = [path.name for path in home.glob("runs/*")]
    agentbox("wait", run, check=0)
    (created,) = records(run, "run.created")
    told = {
        "-d": done.stdout == f"{run}\n" and created["detached"],
        "--detach": done.stdout == f"{run}\n" and created["detached"],
        "--run-id": run == run_id,
        "--task": created["main_task"] == "worker",
        "--backend": created["backend"] == "cgroup",
        "--label": created["labels"] == {"project": "web"},
        "--memory": created["limits"] == {"memory": 2 << 30},
        "--cpus": created["limits"] == {"cpus": 1.5},
        "--pids": created["limits"] == {"pids": 200},
        "--oom-group": created["limits"] == {"oom-group": True},
        "--timeout": created["timeout"] == 7200.0,
        "--on-exit": created["on_exit"] == "leave",
    }
    assert told.get(option, True)


def test_limit_that_was_given_up_is_told_and_recorded(home: Path) -> None:
    """On a machine without the controller; a limit that can't hold is refused unless that was allowed."""
    strict = agentbox("run", "--memory", "2g", "--backend", "cgroup", "--", "true")
    for detach in ([], ["-d"]):
        run = f"lenient-{len(detach)}"
        options = ["--run-id", run, "--memory", "2g", "--limits=best-effort", "--backend", "cgroup", *detach]
        lenient = agentbox("run", *options, "--", "true", check=0)
        agentbox("wait", run, check=0)
        given_up = [note for note in records(run, "note") if "limit given up" in note["text"]]
        assert (strict.returncode == 125) == bool(given_up) == ("--memory cannot be applied" in lenient.stderr)
        if given_up:
            assert "--limits=best-effort" in strict.stderr and "memory" in given_up[0]["text"]


class TestStopOptions:
    def test_reason_and_task(self, home: Path) -> None:
        run = start("sleep", "900")
        agentbox("spawn", "-d", run, "--task", "t", "--", "sleep", "901", check=0)
        main = records(run, "task.started")[0]["pid"]
        done = agentbox("kill", run, "--task", "t", "--reason", "enough", check=0)
        assert f"{run} task t: " in done.stdout and "sleep 901" in done.stdout
        assert pids_of(run) == [main]
        assert (row(run)["state"], row(run)["order"]) == ("running", "RUN")
        (receipt,) = records(run, "stop.receipt")
        assert (receipt["task_id"], receipt["reason"]) == ("t", "enough")
        agentbox("kill", run, check=0)

    def test_dry_run_lists_and_ends_nothing(self, home: Path) -> None:
        run = start("sh", "-c", "setsid sleep 901 & exec sleep 900")
        agentbox("spawn", "-d", run, "--task", "t", "--", "sleep", "902", check=0)
        wait_for(lambda: len(pids_of(run)) == 3)
        record, alive = (home / "runs" / run / "manifest.jsonl").read_bytes(), pids_of(run)
        done = agentbox("kill", run, "--dry-run", check=0)
        assert done.stdout.startswith(f"{run}: would end 3 processes\n")
        assert all(f"sleep {number}" in done.stdout for number in (900, 901, 902))
        (shown,) = json.loads(agentbox("kill", "--all", "--dry-run", "--json", check=0).stdout)
        assert (shown["proof"], sorted(p["pid"] for p in shown["processes"])) == ("alive", sorted(alive))
        of_task = agentbox("kill", run, "--task", "t", "--dry-run", check=0).stdout
        assert "would end 1 process\n" in of_task and "sleep 902" in of_task
        assert pids_of(run) == alive
        assert (home / "runs" / run / "manifest.jsonl").read_bytes() == record
        assert row(run)["order"] == "RUN"
        agentbox("kill", run, check=0)
        assert "would end 0 processes" in agentbox("kill", run, "--dry-run", check=0).stdout

    def test_several_runs(self, home: Path) -> None:
        runs = [start("sleep", "900") for _ in range(2)]
        done = agentbox("kill", *runs, runs[0], check=0)
        assert [line.split(":")[0] for line in done.stdout.splitlines() if line[0] != " "] == runs

    def test_one_wrong_name_holds_back_no_stop(self, home: Path) -> None:
        run = start("sleep", "900")
        done = agentbox("kill", "nosuch", run, check=3)
        assert done.stderr.count("\n") == 1 and "nosuch" in done.stderr
        assert done.stdout.startswith(f"{run}: stopped at") and pids_of(run) == []
        assert agentbox("kill", "nosuch", "-rf/", check=2).stdout == ""
        dry = agentbox("kill", run, "nosuch", "--dry-run", check=3)
        assert dry.stdout.startswith(f"{run}: would end 0")

    def test_abort_with_times(self, home: Path, tmp_path: Path) -> None:
        run = start("sh", "-c", f"trap '' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done")
        wait_for((tmp_path / "on").exists)
        agentbox("abort", run, "--grace", "0.1s", "--term", "0.1", check=0)
        rungs = [rung["rung"] for rung in records(run, "stop.rung")]
        assert rungs == ["order", "grace", "term", "kill"]
        agentbox("wait", run, check=137)

    def test_spawn_prints_the_task(self, home: Path) -> None:
        run = start("sleep", "900")
        task = agentbox("spawn", "-d", run, "--", "sleep", "901", check=0).stdout.strip()
        assert task in [one["task_id"] for one in inspect(run)["task_list"]]
        assert agentbox("spawn", run, "--", "echo", "hello", check=0).stdout == "hello\n"
        agentbox("kill", run, check=0)


def test_doctor(home: Path) -> None:
    done = agentbox("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode in (0, 1) and done.stderr == ""
    assert (done.returncode == 0) == bool(found["auto"] and found["state"]["ok"])
    assert [one["name"] for one in found["backends"]] == ["cgroup", "systemd", "docker"]
    for one in found["backends"]:
        assert one["what"] and (one["works"] or one["repair"]), one
        assert (one["limits"] is None) or one["works"]
    limits = found["backends"][0]["limits"]
    for name, option in (("cpu", ("--cpus", "1")), ("memory", ("--memory", "1g")), ("pids", ("--pids", "500"))):
        tried = agentbox("run", "--backend", "cgroup", *option, "--", "true")
        assert limits is None or (tried.returncode == 0) == (limits[name] == ""), (limits, tried.stderr)
    assert {"name", "what", "effect"} == set().union(*found["ways_out"], {"name", "what", "effect"})
    text = subprocess.run(
        agentbox_argv("doctor"), env=agentbox_env(), capture_output=True, text=True, timeout=60
    ).stdout
    assert limits is None or f"      limits: {', '.join(n for n in limits if not limits[n]) or 'none'}" in text
    assert "cgroup:" in text and "state:" in text and text.isprintable() is False


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--", "printf", "%s ", "--", "-d"], "-- -d "),
        (["printf", "%s ", "--", "x", "--help"], "-- x --help "),
        (["--label", "a=b", "sh", "-c", 'printf "%s " "$@"', "sh", "--", "x"], "-- x "),
    ],
    ids=["after", "without", "with-options"],
)
def test_where_the_command_of_run_begins(words: list[str], command: str, home: Path) -> None:
    """At the first `--`, or at the first word that is no option: what follows is the command's own."""
    assert agentbox("run", *words, check=0).stdout == command
