"""Every command that the README and the guides show is run, in their order, in a place where it can be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.reconcile.findings import KINDS
from tests.beds.base import TREE
from tests.support import agentbox, agentbox_env, wait_for

PAGES = ["README.md", *sorted(str(path.relative_to(TREE)) for path in (TREE / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(?:sh|console)\n(.*?)```", re.DOTALL)

ELSEWHERE = {
    "scripts/agentbox run -- sh -c 'echo hello from $RUN_ID'": "scripts/agentbox",
    "scripts/test": "scripts/test",
    "agentbox install-units": "tests/emergency/test_units.py",
    "agentbox drill": "tests/drill",
    "agentbox top": "tests/top",
}
"""What would set up the machine, takes minutes or needs a terminal, and where it is run for real instead."""

STATUS = {
    "agentbox wait r1": {137},
    "agentbox doctor": {0, 1},
    "agentbox logs -f r1": {124},  # it follows for as long as the run lives
    "agentbox estop --status": {0, 3},
    "agentbox worktrees RUN": {0, 1},
    "agentbox reconcile": {0, 1, 2},
    "agentbox reconcile --json --metrics /var/lib/node_exporter/agentbox.prom": {0, 1, 2},
    "agentbox prune --dry-run": {0, 2},
}
"""Exit statuses that are documented and not 0. `reconcile` and `prune` look at engines that may not be there."""

WORKER = """#!/bin/sh
# Stands for the harness: it passes a gate between two calls.
[ -t 0 ] || [ -n "$AGENTBOX_CONTROL" ] || exit 9
[ -n "$SHORT" ] && exit 0
while agentbox gate; do sleep 0.2; done
"""


def commands(page: str) -> list[list[str]]:
    """The commands of each block, without their comments and their output."""
    blocks = []
    for block in BLOCK.findall((TREE / page).read_text()):
        console = block.startswith("$ ")
        lines = [line[2:] if console else line for line in block.splitlines() if not console or line[:2] == "$ "]
        blocks.append([re.sub(r"\s+# .*", "", line).strip() for line in lines if line.strip()])
    return [block for block in blocks if block]


def test_the_pages_have_commands() -> None:
    assert sum(len(block) for page in PAGES for block in commands(page)) >= 40
    assert all((TREE / place).exists() for place in ELSEWHERE.values())


@pytest.fixture
def place(home: Path, tmp_path: Path) -> Iterator[Path]:
    """A git repository with agentbox, omp and deploy.sh at hand; its runs are ended with it."""
    work, tools = tmp_path / "work", tmp_path / "tools"
    work.mkdir()
    tools.mkdir()
    programs = {
        tools / "agentbox": f'#!/bin/sh\nexec {sys.executable} -m sandbox.cli.main "$@"\n',
        tools / "omp": WORKER,
        work / "deploy.sh": "#!/bin/sh\nwhile :; do sleep 1; done\n",
    }
    for path, text in programs.items():
        path.write_text(text)
        path.chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.invalid", "-C", str(work)]
    for words in (["init", "-qb", "main"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    yield work
    for run in home.glob("*/runs/*"):
        agentbox("kill", run.name, home=run.parent.parent)


def prepared(line: str, work: Path, home: Path) -> str:
    """The line as it is run here: what a reader fills in is filled in, and what has to be there is."""
    if "RUN" in line or re.search(r"\br1\b", line):
        run = "r1" if "r1" in line else "some"
        if not (home / "runs" / run).exists() and "--run-id" not in line:
            start(run, work, home)
    line = line.replace("-- …", "-- sleep 900").replace(" …", "").replace("RUN", "some")
    line = line.replace("/var/lib/node_exporter/", f"{work.parent}/")
    return f"timeout --signal=INT 5 {line}" if " -f " in line else line  # timeout(1) gives 124


def start(run: str, work: Path, home: Path) -> None:
    env = path_env(work, home)
    subprocess.run(["agentbox", "run", "-d", "--run-id", run, "--", "omp"], cwd=work, env=env, check=True)
    wait_for(lambda: any((home / "runs" / run / "beat").iterdir()), 30, "the worker's first boundary")


def path_env(work: Path, home: Path) -> dict[str, str]:
    return agentbox_env(home, PATH=f"{work.parent}/tools:{os.environ['PATH']}")


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_of(page: str, place: Path, home: Path) -> None:
    """Each block begins anew."""
    for number, block in enumerate(commands(page)):
        fresh = home / str(number)
        for line in (line for line in block if line not in ELSEWHERE):
            argv, env = ["sh", "-c", prepared(line, place, fresh)], path_env(place, fresh)
            env["SHORT"] = "1" if line.startswith("agentbox run --") else ""
            done = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, timeout=90)
            said = f"{line}\n{done.stdout}{done.stderr}"
            assert done.returncode in STATUS.get(line.removesuffix("; echo $?"), {0}), said
            assert "Traceback" not in done.stderr, said


@pytest.mark.parametrize("page", ["docs/operating.md", "docs/reconcile.md"])
def test_each_kind_of_finding_is_explained(page: str) -> None:
    rows = "".join(line for line in (TREE / page).read_text().splitlines() if line.startswith("| `"))
    assert [kind for kind in KINDS if f"`{kind}`" not in rows] == []
