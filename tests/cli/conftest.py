"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest

from tests.cli.runs import new_id


@pytest.fixture
def run_id() -> str:
    """A run id that no other test has."""
    return new_id()
