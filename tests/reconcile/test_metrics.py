"""The metrics file, and the log in the journal's form."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sandbox.reconcile.findings import GRAVITY, KINDS
from tests.cli.runs import start
from tests.reconcile.looking import box_pids, ended, kinds, one, orphan, reconcile
from tests.support import agentbox, agentbox_argv, agentbox_env, wait_for

pytestmark = pytest.mark.usefixtures("runs")

LINE = re.compile(r'(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{([a-z]+="[a-z_ ]+",?)+\})? [0-9.e+]+)')


def values(path: Path) -> dict[str, float]:
    lines = path.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}


def count_of(kind: str, severity: str) -> str:
    return f'agentbox_reconcile_findings{{kind="{kind}",severity="{severity}"}}'


def test_metrics_of_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agentbox.prom"
    start("sleep", "900")
    orphan()
    ended(start("true"))
    agentbox("reconcile", "--metrics", str(path), check=1)
    seen = values(path)
    assert [seen[count_of("orphan", severity)] for severity in GRAVITY] == [0, 1, 0]
    assert {count_of(kind, severity) for kind in KINDS for severity in GRAVITY} <= set(seen)
    assert (seen['agentbox_runs{state="running"}'], seen['agentbox_runs{state="exited"}']) == (2, 1)
    assert 0 < seen["agentbox_reconcile_duration_seconds"] < 60
    success = seen["agentbox_reconcile_last_success_timestamp_seconds"]
    assert os.listdir(tmp_path) == ["agentbox.prom"] or {"agentbox.prom", "home"} == set(os.listdir(tmp_path))
    reconcile("--kill", "--metrics", str(path), check=0)
    assert values(path)[count_of("orphan", "warning")] == 0
    assert values(path)["agentbox_reconcile_last_success_timestamp_seconds"] > success


def test_last_success_survives_a_look_that_was_not_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agentbox.prom"
    reconcile("--metrics", str(path), check=0)
    success = values(path)["agentbox_reconcile_last_success_timestamp_seconds"]
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    run = start("sleep", "900", options=("--backend", "cgroup"))
    manifest = next((Path(os.environ["AGENTBOX_HOME"]) / "runs" / run).glob("manifest.jsonl"))
    manifest.write_text(manifest.read_text().replace('"backend":"cgroup"', '"backend":"docker"', 1))
    agentbox("reconcile", "--metrics", str(path), check=2)
    assert values(path)["agentbox_reconcile_last_success_timestamp_seconds"] == success
    assert values(path)["agentbox_reconcile_not_asked"] == 1


def test_metrics_that_can_not_be_written(tmp_path: Path) -> None:
    done = agentbox("reconcile", "--metrics", str(tmp_path / "none/x"))
    assert done.returncode == 2 and "metrics cannot be written" in done.stderr


def test_what_is_below_the_least_severity(tmp_path: Path) -> None:
    """Neither shown nor counted for the exit status; the metrics tell it with its severity."""
    path = tmp_path / "agentbox.prom"
    kept = start("sh", "-c", "sleep 900 & exit 0", options=("--on-exit", "leave"))
    wait_for(lambda: kinds() == ["leftovers"])
    assert one("leftovers", "--min-severity", "info", check=1)["severity"] == "info"
    assert kinds("--min-severity", "warning", "--metrics", str(path), check=0) == []
    assert values(path)[count_of("leftovers", "info")] == 1
    done = agentbox("reconcile", "--min-severity", "warning", check=0)
    assert kept not in done.stdout + done.stderr
    run = orphan()
    assert one("orphan", "--min-severity", "warning", check=1)["run_id"] == run
    assert kinds("--min-severity", "security", check=0) == []
    assert kinds("--kill", "--min-severity", "warning", check=0) == ["orphan"]
    assert box_pids(kept) and not box_pids(run)
    assert "--min-severity" in agentbox("reconcile", "--min-severity", "low", check=2).stderr


def test_lines_for_the_journal(tmp_path: Path) -> None:
    """Where stderr is the journal each finding is a line with its priority, and no table is printed there."""
    run = orphan()
    with open(tmp_path / "journal", "w+") as journal:
        info = os.fstat(journal.fileno())
        env = agentbox_env(JOURNAL_STREAM=f"{info.st_dev}:{info.st_ino}")
        done = subprocess.run(agentbox_argv("reconcile"), stdout=journal, stderr=journal, env=env)
        journal.seek(0)
        lines = journal.read().splitlines()
    assert done.returncode == 1
    (line,) = [line for line in lines if run in line]
    assert line.startswith("<4>orphan: ") and f"agentbox kill {run}" in line
    assert all(line[0] == "<" for line in lines)
