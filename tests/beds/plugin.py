"""The pytest side of the beds: a test is written once and says where it runs.

    @pytest.mark.bed("nspawn")            there only
    @pytest.mark.bed("host", "nspawn")    once in each, as test_x[host] and test_x[nspawn]
    pytest.param(..., marks=pytest.mark.bed("vm"))   a parameter's mark wins over the function's

Items of another bed are collected here, run in one pytest inside the bed, and their reports are replayed
here, each as an ordinary test. A bed that cannot be had skips its items with the reason, and fails them where
CI=true.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests import leaks
from tests.beds import dockerd
from tests.beds.base import CI, Bed, Job, Running, wait_until
from tests.beds.host import BESIDE, DOCKERD, HOST, HostBed
from tests.beds.nspawn import Nspawn
from tests.beds.vm import VmBed

OFF_LOADED = ("tests/hostile/", "tests/launch/", "tests/proof/", "tests/reconcile/")
"""What BESIDE takes over where the whole suite runs; their tests wait much of their time."""
WHOLE = 1000  # tests on the host from which on it counts as the whole suite
BEDS: dict[str, Bed] = {
    bed.name: bed
    for bed in (
        HostBed(DOCKERD, dockerd.missing),
        HostBed(BESIDE, lambda: None),
        Nspawn("nspawn"),
        Nspawn("nspawn-user", user="dev"),
        VmBed("vm"),
    )
}
LANES = (("nspawn", "nspawn-user", DOCKERD), ("vm", BESIDE))
"""The beds of a lane run one after the other, the lanes side by side and beside the host's tests."""
ENDED_EARLY = "it ended before its tests were through"
SILENCE = 1000.0  # seconds without a report after which a bed counts as hung: a boot or the longest test

_MARKERS = (
    "bed(name, ...): where the test runs: host (default), dockerd, nspawn, nspawn-user, vm",
    "may_skip(why): the test may skip where CI=true, too",
    "full(why): runs only with --full",
)
bed_key = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("beds")
    group.addoption("--bed", default=HOST, help="the bed that this pytest itself runs in (set by the beds)")
    group.addoption("--only-bed", action="append", default=[], help="only the tests of this bed")
    group.addoption("--full", action="store_true", help="also the tests marked full")


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("--bed") == HOST:
        config.pluginmanager.register(Replayer(config), "bed-replayer")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A mark that names several beds makes one test of each."""
    mark = metafunc.definition.get_closest_marker("bed")
    if mark is None or len(mark.args) < 2:
        return
    if "bed" not in metafunc.fixturenames:
        metafunc.fixturenames.append("bed")
    params = [pytest.param(name, marks=pytest.mark.bed(name), id=name) for name in mark.args]
    metafunc.parametrize("bed", params, indirect=True)


@pytest.fixture
def bed(request: pytest.FixtureRequest) -> str:
    """The name of the bed that the test runs in."""
    return bed_of(request.node)


def bed_of(item: pytest.Item) -> str:
    """The bed that `item` is marked for."""
    callspec = getattr(item, "callspec", None)
    marks = [mark for mark in getattr(callspec, "marks", []) if mark.name == "bed"]
    mark = marks[-1] if marks else item.get_closest_marker("bed")
    if mark is None:
        return HOST
    name = str(mark.args[0])
    if name != HOST and name not in BEDS:
        raise pytest.UsageError(f"{item.nodeid}: no bed {name!r}; there are {HOST}, {', '.join(BEDS)}")
    return name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for; the host's tests come first, then bed by bed."""
    only = config.getoption("--only-bed")
    here = config.getoption("--bed")
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        name = item.stash[bed_key] = bed_of(item)
        full = config.getoption("--full") or item.get_closest_marker("full") is None
        wanted = name == (HOST if here == BESIDE else here) if here != HOST else not only or name in only
        (kept if full and wanted else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
    if here == HOST:
        _off_load([item for item in kept if item.stash[bed_key] == HOST])
    order = [HOST, *BEDS]
    items[:] = sorted(kept, key=lambda item: order.index(item.stash[bed_key]))


def _off_load(items: list[pytest.Item]) -> None:
    for item in items if len(items) > WHOLE else ():
        if item.nodeid.startswith(OFF_LOADED):
            item.stash[bed_key] = BESIDE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where CI=true a skip is a failure: a test that did not run proves nothing."""
    report: Any = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if CI and skipped and item.get_closest_marker("may_skip") is None:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped where CI=true, and not marked may_skip: {why}"
    return report  # type: ignore[no-any-return]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for a module that skips itself."""
    report: Any = yield
    if CI and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"skipped where CI=true: {report.longrepr[2]}"
    return report  # type: ignore[no-any-return]


class Replayer:
    """On the host: runs each bed once, beside the host's own tests, and replays its reports when its items come up."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.runs: dict[str, BedRun] = {}
        self.items: dict[str, list[str]] = defaultdict(list)
        self.guard: subprocess.Popen[bytes] | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.items[item.stash[bed_key]].append(item.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        self._start_due()
        name = item.stash[bed_key]
        if name == HOST:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, name):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self.items[name][-1] == item.nodeid:
            self.runs[name].stop()
        return True

    def pytest_sessionfinish(self) -> None:
        for run in self.runs.values():
            run.stop()
        if self.guard is not None:
            self.guard.kill()
            self.guard.communicate()

    def _start_due(self) -> None:
        """Start the beds whose turn it is: between two tests, and from the main thread, with which a bed ends."""
        for lane in LANES:
            for name in lane:
                if name in self.items and name not in self.runs:
                    self.guard = self.guard or leaks.start_guard()
                    job = Job(name, self.items[name], self._options(), {"CI": "true"} if CI else {})
                    self.runs[name] = BedRun(BEDS[name], job)
                if name in self.runs and self.runs[name].under_way():
                    break

    def _reports(self, item: pytest.Item, name: str) -> list[pytest.TestReport]:
        while name not in self.runs:  # the bed before it in its lane is under way
            time.sleep(0.05)
            self._start_due()
        run = self.runs[name]
        if run.missing:
            return [_report(item, "failed" if CI else "skipped", f"bed {name}: {run.missing}")]
        lines, error = run.of(item.nodeid)
        read = self.config.hook.pytest_report_from_serializable
        reports = [read(config=self.config, data=line) for line in lines]
        if error:
            reports.append(_report(item, "failed", f"bed {name}: {error}\n\n{run.log()}"))
        return reports

    def _options(self) -> list[str]:
        options = ["--full"] if self.config.getoption("--full") else []
        if self.config.getoption("maxfail"):
            options.append(f"--maxfail={self.config.getoption('maxfail')}")
        return options


def _report(item: pytest.Item, outcome: Any, text: str) -> pytest.TestReport:
    path, line, _ = item.location
    longrepr: Any = text if outcome == "failed" else (path, (line or 0) + 1, text)
    return pytest.TestReport(item.nodeid, item.location, {}, outcome, longrepr, "setup")


class BedRun:
    """One bed's one boot; its report lines, read while they are written."""

    def __init__(self, bed: Bed, job: Job) -> None:
        self.missing = bed.missing()
        self.failed = ""
        self.running: Running | None = None
        self.lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.finished: set[str] = set()
        self.collect_errors = ""
        self.ended = False
        self.heard = time.monotonic()
        self.offset = 0
        self._log = ""
        if not self.missing:
            try:
                self.running = bed.start(job)
            except Exception as error:
                self.failed = f"could not be started: {error}"

    def under_way(self) -> bool:
        """Whether it has still tests to run; it is stopped when it has none."""
        if self.running is None:
            return False
        alive = self.running.alive()  # asked first: what it wrote before its end is read
        self._read()
        if alive and not self.ended and not self._is_silent():
            return True
        if not self.ended:
            self.failed = self.failed or ENDED_EARLY
        self._let_end()
        return False

    def _is_silent(self) -> bool:
        if time.monotonic() - self.heard > SILENCE:
            self.failed = f"no report for {SILENCE:g} s"
        return self.failed != ""

    def of(self, nodeid: str) -> tuple[list[dict[str, Any]], str]:
        """The serialized reports of one item and "", or what came of them and what went wrong."""
        while not self.failed and nodeid not in self.finished and not self.ended:
            alive = self.running is not None and self.running.alive()
            if self._read():
                continue
            if not alive:
                self.failed = ENDED_EARLY
            elif not self._is_silent():
                time.sleep(0.05)
        if nodeid not in self.finished:
            self._let_end()
        if nodeid in self.finished:
            return self.lines[nodeid], ""
        why = self.failed or "the pytest inside ended without running this test"
        return self.lines[nodeid], f"{why}\n{self.collect_errors}".rstrip()

    def _let_end(self) -> None:
        """Let a bed that is through print its last words, then end it."""
        with contextlib.suppress(TimeoutError):
            if self.ended and self.running is not None:
                wait_until(lambda: self.running is None or not self.running.alive(), 15, "bed ends")
        self.stop()

    def _read(self) -> bool:
        """Take the whole lines that came since; False if none did."""
        assert self.running is not None
        try:
            with open(self.running.reports, "rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return False
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))
        if whole:
            self.heard = time.monotonic()
        return bool(whole)

    def _take(self, line: dict[str, Any]) -> None:
        if "report" in line:
            self.lines[line["report"]["nodeid"]].append(line["report"])
        elif "finish" in line:
            self.finished.add(line["finish"])
        elif "collect" in line:
            self.collect_errors += f"{line['collect']}: {line['text']}\n"
        elif "end" in line:
            self.ended = True

    def log(self) -> str:
        """The end of what the bed printed."""
        return self.running.log() if self.running and not self._log else self._log

    def stop(self) -> None:
        """End the bed, its log kept."""
        if self.running is not None:
            self._log = self.log()
            self.running.stop()
            self.running = None
