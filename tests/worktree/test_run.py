"""`agentbox run --worktree` from end to end: where the command finds itself, what is recorded, what a stop leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox.worktree.prune import candidates
from sandbox.worktree.repository import listed
from tests.cli.runs import gone, no_runs_left, one_line, pids_of, records
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for
from tests.worktree.conftest import commit, made, out, run_git

pytestmark = pytest.mark.usefixtures("home")


def shown(run: str) -> dict[str, dict[str, Any]]:
    """`agentbox worktrees --json` by task."""
    found = json.loads(agentbox("worktrees", run, "--json", check=0).stdout)
    return {one["task_id"]: one for one in found}


def script(text: str) -> list[str]:
    return ["sh", "-c", text]


CHECKPOINT = f'"{sys.executable}" -m sandbox.cli.main checkpoint'


def test_the_command_finds_itself_in_its_worktree(repo: Path, tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q", "other")
    env = {"GIT_DIR": str(tmp_path / "other/.git"), "GIT_INDEX_FILE": "/nonexistent", "PWD": str(repo)}
    text = f'pwd; echo "$PWD"; git status -sb; echo x > new; {CHECKPOINT} first part; exit 7'
    done = agentbox("run", "--run-id", "r1", "--worktree", "--", *script(text), cwd=repo, env=env, check=7)
    tree = repo.parent / "wt-r1-main"
    lines = done.stdout.splitlines()
    assert lines[:3] == [str(tree), str(tree), "## agent/r1/main"], done.stdout
    assert "wip: main first part" in lines[3]
    (started,) = records("r1", "task.started")
    (intent,) = records("r1", "task.intent")
    assert (started["branch"], started["worktree"]) == ("agent/r1/main", str(tree))
    assert intent["repository"] == str(repo / ".git") and intent["base"] == out(repo, "rev-parse", "HEAD")
    one = shown("r1")["main"]
    flags = [one[name] for name in ("clean", "dirty", "wip", "abandoned", "ahead", "unpushed", "stash")]
    assert flags == [True, False, True, False, 1, 1, 0]
    assert out(repo, "status", "--porcelain") == "" and out(repo, "symbolic-ref", "--short", "HEAD") == "main"


def test_twelve_workers_of_one_run_at_once(repo: Path, bystander: subprocess.Popen[bytes]) -> None:
    agentbox("run", "-d", "--run-id", "r1", "--", "sleep", "900", cwd=repo, check=0)
    spawn = ("spawn", "r1", "-d", "--worktree", "--base", "origin/main")
    workers = [
        subprocess.Popen(
            agentbox_argv(*spawn, "--task", f"t{n}", "--", *script("echo > new; git stash -qu; echo > new; sleep 900")),
            cwd=repo,
            env=agentbox_env(),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for n in range(12)
    ]
    errors = [worker.communicate()[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 12, errors
    wait_for(lambda: all(one["dirty"] and one["stash"] == 1 for one in shown("r1").values()), 60)
    assert len(shown("r1")) == 12
    (first, *_) = candidates(str(repo / ".git"), lambda run: True)
    assert any("works in it" in line for line in first.keep)
    agentbox("kill", "r1", check=0)
    assert all(one["exists"] and one["dirty"] and one["stash"] == 1 for one in shown("r1").values())
    assert all(row["ahead"] == 0 for row in shown("r1").values())


def test_a_worker_starts_another_from_its_own_worktree(repo: Path) -> None:
    again = f'"{sys.executable}" -m sandbox.cli.main spawn r1 --task sub --worktree -- pwd'
    text = f"echo x > b; git add b; git commit -qm b; {again}"
    done = agentbox("run", "--run-id", "r1", "--worktree", "--", *script(text), cwd=repo, check=0)
    assert done.stdout.strip() == str(repo.parent / "wt-r1-sub")
    assert (repo.parent / "wt-r1-sub/b").exists()


@pytest.mark.parametrize(
    ("options", "command", "code", "words"),
    [
        (("--base", "main"), "true", 125, ("--base", "--worktree")),
        (("--worktree", "--base", "nope"), "true", 125, ("nope names no commit",)),
        (("--worktree", "--task", "a..b"), "true", 125, ("a..b",)),
        (("--worktree",), "no-such-command", 127, ("not found",)),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    repo: Path, options: tuple[str, ...], command: str, code: int, words: tuple[str, ...]
) -> None:
    done = agentbox("run", *options, "--", command, cwd=repo, check=code)
    one_line(done, *words)
    no_runs_left()
    assert len(listed(str(repo / ".git"))) == 1


def test_outside_of_a_repository_or_under_an_emergency_stop(repo: Path, home: Path) -> None:
    one_line(agentbox("run", "--worktree", "--", "true", cwd=repo.parent, check=125), "in no git repository")
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "EMERGENCY_STOP").touch()
    one_line(agentbox("run", "--worktree", "--", "true", cwd=repo.parent, check=75), "emergency stop")
    no_runs_left()


def test_a_branch_that_another_run_holds_names_it(repo: Path) -> None:
    made(repo, "r1", "main")
    line = one_line(agentbox("run", "--run-id", "r1", "--worktree", "--", "true", cwd=repo, check=125), "by run r1")
    assert "not known here" in line
    agentbox("run", "--run-id", "r2", "--worktree", "--", "true", cwd=repo, check=0)
    line = one_line(agentbox("run", "--run-id", "r2", "--worktree", "--", "true", cwd=repo, check=125), "by run r2")
    assert "(exited)" in line


def test_a_command_that_is_not_in_the_worktree_takes_it_back(repo: Path) -> None:
    (repo / "mine.sh").write_text("#!/bin/sh\n")
    (repo / "mine.sh").chmod(0o755)  # not committed, so not there
    done = agentbox("run", "--run-id", "r1", "--worktree", "--", "./mine.sh", cwd=repo, check=127)
    one_line(done, "./mine.sh", "not found")
    assert not (repo.parent / "wt-r1-main").exists() and out(repo, "branch", "--list", "agent/*") == ""
    assert shown("r1") == {}
    run_git(repo, "add", "mine.sh")
    run_git(repo, "commit", "-qm", "mine")
    (repo / "sub").mkdir()
    agentbox("run", "--run-id", "r2", "--worktree", "--", "./mine.sh", cwd=repo / "sub", check=0)


def slow_checkout(repo: Path) -> Path:
    """Make the checkout of a worktree hang; gives the file that shows that it does."""
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("a filter=slow\n")
    begun = repo.parent / "begun"
    run_git(repo, "config", "filter.slow.smudge", f"echo $$ > '{begun}'; exec sleep 600")
    return begun


def start_slow(repo: Path) -> tuple[subprocess.Popen[str], int]:
    begun = slow_checkout(repo)
    launcher = subprocess.Popen(
        agentbox_argv("run", "--run-id", "r1", "--worktree", "--", "touch", str(repo.parent / "ran")),
        cwd=repo,
        env=agentbox_env(),
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: begun.exists() and begun.read_text().strip(), 30, "the checkout hangs")
    return launcher, int(begun.read_text())


@pytest.mark.parametrize("how", ["kill", "estop", "interrupt"])
def test_a_stop_while_it_is_made_leaves_nothing(repo: Path, home: Path, how: str) -> None:
    launcher, filter_pid = start_slow(repo)
    if how == "kill":
        agentbox("kill", "r1", check=0)
    elif how == "estop":
        (home / "EMERGENCY_STOP").touch()
    else:
        launcher.send_signal(signal.SIGINT)
    _, err = launcher.communicate(timeout=30)
    assert launcher.returncode == (125 if how == "interrupt" else 75), err
    assert len(err.splitlines()) == 1
    assert not (repo.parent / "wt-r1-main").exists() and not (repo.parent / "ran").exists()
    assert out(repo, "branch", "--list", "agent/*") == "" and len(listed(str(repo / ".git"))) == 1
    wait_for(lambda: not is_alive(filter_pid))
    assert records("r1", "task.failed_to_start")


def test_a_launcher_that_is_killed_leaves_one_that_is_recorded(repo: Path) -> None:
    launcher, filter_pid = start_slow(repo)
    launcher.kill()
    launcher.communicate()
    one = shown("r1")["main"]
    assert one["exists"] and one["finished_making"] is False
    assert "half-made" in agentbox("worktrees", "r1", check=0).stdout
    git_pid = int(Path(f"/proc/{filter_pid}/stat").read_text().rpartition(")")[2].split()[2])  # its session's leader
    os.killpg(git_pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(filter_pid))
    assert records("r1")[-1]["event"] == "task.intent"
    (found,) = candidates(str(repo / ".git"), lambda run: True)
    assert found.run_id == "r1"
    assert not (repo.parent / "ran").exists()


def test_agentbox_works_from_a_worktree_that_was_removed(repo: Path) -> None:
    agentbox("run", "-d", "--run-id", "r1", "--worktree", "--", "sleep", "900", cwd=repo, check=0)
    tree = repo.parent / "wt-r1-main"
    text = f'rm -rf "{tree}"; for verb in "ps -a" "worktrees r1" "checkpoint" "run --worktree -- true" "kill r1"; do'
    text += f' "{sys.executable}" -m sandbox.cli.main $verb; echo "$?"; done'
    done = subprocess.run(["sh", "-c", text], cwd=tree, env=agentbox_env(), capture_output=True, text=True)
    codes = [line for line in done.stdout.splitlines() if line.isdigit()]
    assert codes == ["0", "0", "2", "125", "0"], (done.stdout, done.stderr)
    assert done.stderr.count("was deleted") == 2
    assert "gone" in done.stdout
    wait_for(lambda: gone("r1"))


def test_a_run_without_a_worktree_loads_none_of_this(repo: Path) -> None:
    loader = [sys.executable, "-X", "importtime", *agentbox_argv("run", "--", "true")[1:]]
    done = subprocess.run(loader, cwd=repo, env=agentbox_env(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "sandbox.launch.run" in loaded
    assert not {name for name in loaded if "worktree" in name or name == "subprocess"}


def test_work_is_kept_when_the_run_is_killed(repo: Path) -> None:
    text = "echo half > a; sleep 900"
    agentbox("run", "-d", "--run-id", "r1", "--worktree", "--", *script(text), cwd=repo, check=0)
    tree = repo.parent / "wt-r1-main"
    wait_for(lambda: (tree / "a").read_text() == "half\n" and pids_of("r1"))
    agentbox("kill", "r1", check=0)
    assert (tree / "a").read_text() == "half\n"
    assert shown("r1")["main"]["dirty"] is True
    commit(tree, "b")
    assert shown("r1")["main"]["ahead"] == 1
