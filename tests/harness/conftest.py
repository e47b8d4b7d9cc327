"""Fixtures of the real harnesses' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.beds.base import CI
from tests.cli.runs import new_id
from tests.harness import packages
from tests.harness.model import Model, Script, serving
from tests.harness.session import Session

Start = Callable[..., Session]


@pytest.fixture(scope="session")
def omp_binaries() -> Path:
    """Where the commands `omp` and `bun` are."""
    if why := packages.missing():
        (pytest.fail if CI else pytest.skip)(f"omp {packages.OMP}: {why}")
    return packages.omp()


@pytest.fixture
def run_id() -> str:
    """A run id that no other test has."""
    return new_id()


@pytest.fixture
def start(omp_binaries: Path, home: Path, tmp_path: Path) -> Iterator[Start]:
    """Start omp with a script for its model; `verb` is how, if not as the main task of a run of its own."""
    with ExitStack() as stack:

        def begin(
            scripts: dict[str, Script], verb: list[str] | None = None, task: str = "main", installed: bool = False
        ) -> Session:
            model = stack.enter_context(serving(Model(scripts)))
            verb = verb or ["run", "--run-id", new_id()]
            session = Session(omp_binaries, model, home, tmp_path / "work", verb, task, installed)
            stack.callback(session.close)
            return session

        yield begin
