"""The images to run agents in, built by scripts/images and used from the command line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.beds.base import TREE
from tests.docker.conftest import Lab
from tests.support import agentbox

NAMES = ("base", "omp", "python")


def test_each_image_stands_on_one_that_can_be_chosen() -> None:
    assert sorted(path.name for path in (TREE / "images").iterdir()) == sorted(NAMES)
    for name in NAMES:
        lines = [line for line in (TREE / "images" / name / "Dockerfile").read_text().splitlines() if line[:1] != "#"]
        assert re.fullmatch(r"ARG BASE=agentbox/(debian|base)", lines[0])
        assert lines[1] == "FROM ${BASE}"


def test_a_name_that_is_no_image_is_said() -> None:
    done = subprocess.run([TREE / "scripts" / "images", "nonsense"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


@pytest.mark.bed("dockerd")
@pytest.mark.full("builds images of half a gigabyte")
@pytest.mark.limit(1800)
def test_the_images_hold_what_they_are_for(lab: Lab) -> None:
    built = subprocess.run([TREE / "scripts" / "images"], capture_output=True, text=True, timeout=1700)
    assert built.returncode == 0, built.stderr[-2000:]

    def run(name: str, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return agentbox("run", "--image", f"agentbox/{name}", *words, home=lab.home, cwd=lab.work, timeout=300, **more)

    assert re.match(r"omp/\d", run("omp", "--", "omp", "--version", check=0).stdout)
    assert run("python", "--", "python3", "-m", "pip", "--version", check=0).stdout.startswith("pip ")
    home = run("base", "--user", "4711:4711", "--", "sh", "-c", "id -u; cd; touch x && pwd; git --version", check=0)
    assert home.stdout.startswith("4711\n/home/agent\ngit version")
    made = run("base", "--", "bash", "-c", "git init -q . && git status -s", check=0)
    assert made.stderr.count("\n") == 1, "the working folder is the caller's own: git trusts it"
    assert Path(lab.work, ".git").is_dir()
