"""A run with a bystander of the same argv."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stop.stage import Stage

Staged = Callable[..., Stage]


@pytest.fixture
def staged(home: Path, bed: str, tmp_path: Path) -> Iterator[Staged]:
    """`staged(argv)` gives a Stage in this bed, not started yet; the test may have several."""
    stages: list[Stage] = []

    def make(argv: list[str], run_id: str = "") -> Stage:
        folder = tmp_path / f"stage{len(stages)}"
        folder.mkdir()
        stages.append(Stage(argv, bed, folder, run_id))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()
