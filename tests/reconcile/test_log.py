"""The log of what runs when nobody looks, on a stream that takes no line."""

from __future__ import annotations

import io

import pytest

from sandbox.reconcile import log


class FailsOnce(io.StringIO):
    """As a disk that is full for a moment: an error at the first write alone, so that a complaint would be seen."""

    failed = False

    def write(self, text: str) -> int:
        if not self.failed:
            self.failed = True
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_line_that_cannot_be_written_is_lost_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FailsOnce()
    monkeypatch.setattr("sys.stderr", stream)
    logger = log.logger()
    logger.info("first")
    logger.info("second")
    logger.remove()
    assert stream.failed
    (line,) = stream.getvalue().splitlines()
    assert line.endswith("agentbox INFO: second")
