"""Tests that go wrong on purpose; test_beds.py runs them in a session of their own and reads the report."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest


@pytest.mark.bed("nspawn")
def test_passes_inside() -> None:
    assert Path("/proc/1/comm").read_text() == "systemd\n"


@pytest.mark.bed("nspawn")
def test_fails_inside() -> None:
    assert Path("/proc/1/comm").read_text() == "wrong on purpose"


@pytest.mark.bed("nspawn")
def test_leaks_a_process_inside() -> None:
    subprocess.Popen(["sleep", "901"], start_new_session=True)


@pytest.mark.bed("nspawn")
def test_skips_inside() -> None:
    pytest.skip("nothing to see")


@pytest.mark.bed("nspawn")
def test_ends_its_bed() -> None:
    subprocess.Popen(["systemctl", "poweroff", "-ff"])
    signal.pause()


@pytest.mark.bed("nspawn")
def test_comes_after_the_end() -> None:
    pass


def test_leaks_a_process() -> None:
    subprocess.Popen(["sleep", f"902.{os.getppid()}"], start_new_session=True)


def test_after_the_leak() -> None:
    pass
