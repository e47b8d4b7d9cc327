"""A fleet in a private home, ended with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emergency.fleet import Fleet


@pytest.fixture
def fleet(home: Path) -> Iterator[Fleet]:
    """No runs yet."""
    one = Fleet(home)
    yield one
    one.end()
