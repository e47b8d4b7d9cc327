"""Loaded into the pytest inside a bed: keeps to the job's items and writes each report as a line of JSON.

Lines: {"start": nodeid}, {"report": ...}, {"finish": nodeid}, {"end": exit status}, {"collect": nodeid,
"text": ...}. Only what is written counts outside: a bed that dies leaves its open items without reports, and
they become errors there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.beds.base import INSIDE


class Reporter:
    """Writes the lines."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self.config = config
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def say(self, **line: Any) -> None:
        """Write one line, whole."""
        data = json.dumps(line, default=str).encode() + b"\n"
        while data:
            data = data[os.write(self.fd, data) :]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        job = Path(os.environ.get("TESTBED_JOB") or INSIDE / "job")
        wanted = json.loads((job / "items.json").read_text())["items"]
        order = {nodeid: place for place, nodeid in enumerate(wanted)}
        here = (item for item in items if item.nodeid in order)
        items[:] = sorted(here, key=lambda item: order[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.say(collect=report.nodeid, text=str(report.longrepr))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self.config.hook
        self.say(report=hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.say(finish=nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.say(end=int(exitstatus))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reporter(config, os.environ["TESTBED_REPORTS"]), "testbed-reporter")
