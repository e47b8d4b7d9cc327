"""What ended runs left behind goes when told, and nothing else."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pexpect
import pytest

from sandbox.boxes.cgroup import HOME_XATTR
from tests.cli.runs import inspect, run_dir, start
from tests.reconcile.looking import assert_clean, box_pids, edit_record, end_launcher, ended, orphan
from tests.support import agentbox, agentbox_argv, agentbox_env, is_alive, wait_for

pytestmark = pytest.mark.usefixtures("runs")

OLD = ("--older-than", "0s")


def prune(*args: str, check: int = 0) -> dict[str, Any]:
    return dict(json.loads(agentbox("prune", "--json", *args, check=check).stdout))


def test_records_go_when_old_and_told() -> None:
    run, live, lost = ended(start("true")), start("sleep", "900"), orphan()
    assert prune("--dry-run")["leftovers"] == []
    shown = prune("--dry-run", *OLD)
    assert [(one["what"], one["run_id"]) for one in shown["leftovers"]] == [("record", run)]
    assert run_dir(run).exists()
    assert [one["run_id"] for one in prune("--yes", *OLD)["removed"]] == [run]
    assert not run_dir(run).exists()
    assert run_dir(live).exists() and run_dir(lost).exists() and box_pids(live) and box_pids(lost)
    assert prune("--yes", *OLD)["leftovers"] == []


def test_empty_cgroups_go_at_once() -> None:
    run = start("sleep", "900")
    (pid,) = box_pids(run)
    end_launcher(run)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    removed = prune("--yes")["removed"]
    assert [one["what"] for one in removed] == ["cgroup"]
    assert not os.path.exists(removed[0]["where"]) and run_dir(run).exists()


def test_full_cgroup_stays(free_cgroup: Path, home: Path) -> None:
    parent = free_cgroup / "agentbox" / "r-full"
    (parent / "main").mkdir(parents=True)
    os.setxattr(parent, HOME_XATTR, os.fsencode(home))
    (parent / "main" / "cgroup.procs").write_text(str(os.getpid()))
    try:
        assert prune("--yes")["leftovers"] == []
    finally:
        (free_cgroup.parent / "cgroup.procs").write_text(str(os.getpid()))
    assert [one["run_id"] for one in prune("--yes")["removed"]] == ["r-full"]
    assert_clean()


def test_work_in_a_worktree_keeps_the_record(tmp_path: Path) -> None:
    run = ended(start("true"))
    tree = tmp_path / "wt"
    tree.mkdir()

    def with_tree(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line["event"] == "task.started":
                line["worktree"] = str(tree)

    edit_record(run, with_tree)
    shown = prune("--yes", *OLD)
    assert shown["removed"] == [] and run in shown["kept"][0]
    tree.rmdir()
    assert [one["run_id"] for one in prune("--yes", *OLD)["removed"]] == [run]


def test_nobody_to_ask() -> None:
    run = ended(start("true"))
    done = agentbox("prune", *OLD)
    assert done.returncode == 2 and "--yes" in done.stderr
    assert run_dir(run).exists()


@pytest.mark.parametrize("answer", ["y", "n"])
def test_it_asks_on_a_terminal(answer: str) -> None:
    run = ended(start("true"))
    argv = agentbox_argv("prune", *OLD)
    terminal = pexpect.spawn(argv[0], argv[1:], env=agentbox_env(), timeout=30, encoding="utf-8")
    terminal.expect("remove all of this")
    terminal.sendline(answer)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert run_dir(run).exists() == (answer == "n")


def test_a_link_in_the_place_of_a_run_is_not_followed(home: Path, tmp_path: Path) -> None:
    run = ended(start("true"))
    elsewhere = tmp_path / "elsewhere"
    run_dir(run).rename(elsewhere)
    run_dir(run).symlink_to(elsewhere)
    prune("--yes", *OLD)
    assert elsewhere.exists() and (elsewhere / "manifest.jsonl").exists()


@pytest.mark.bed("dockerd")
def test_stopped_containers(engine: Any) -> None:
    from tests.beds.dockerd import IMAGE

    live = start("sleep", "900", options=("--image", IMAGE))
    over = start("true", options=("--image", IMAGE))
    agentbox("wait", over, check=0)
    wait_for(lambda: inspect(over)["state"] == "exited")
    removed = prune("--yes")["removed"]
    assert [(one["what"], one["run_id"]) for one in removed] == [("container", over)]
    assert inspect(live)["proof"] == "alive"
    assert prune("--yes")["leftovers"] == []
