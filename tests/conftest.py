"""Fixtures of all tests, the gate that lets no test leave anything behind, and a deadline for each test."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leaks
from tests.beds import space
from tests.beds.base import sweep
from tests.beds.dockerd import Dockerd
from tests.beds.dockerd import missing as dockerd_missing
from tests.beds.host import ON_THE_HOST
from tests.support import is_alive

pytest_plugins = ["tests.beds.plugin"]

LIMIT = 300.0  # seconds for one test, unless it is marked limit(seconds)
LIMIT_EMULATED = 900.0  # the same in a machine whose processor is emulated


def pytest_configure(config: pytest.Config) -> None:
    # A suite that was put into the background by a script ignores Ctrl+C, and so would all that it starts.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    config.addinivalue_line("markers", f"limit(seconds): fails after this time instead of {LIMIT:g} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that hangs fails with the place where it hangs."""
    mark = item.get_closest_marker("limit")
    usual = LIMIT_EMULATED if item.config.getoption("--bed") == "vm" else LIMIT
    seconds = float(mark.args[0]) if mark else usual

    def expired(*_: object) -> None:
        pytest.fail(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def leak_session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[leaks.Session]:
    """The session's mark, and the gate of what outlives a test: fixtures of a module or the session."""
    own_machine = request.config.getoption("--bed") not in ON_THE_HOST
    session = leaks.Session(own_machine, tmp_path_factory.getbasetemp())
    gate = leaks.Gate(session, lambda: None)
    yield session
    left = gate.leaks()
    session.close()
    if left:
        pytest.fail(f"the session left behind: {left}", pytrace=False)


@pytest.fixture(autouse=True)
def leak_gate(
    request: pytest.FixtureRequest, leak_session: leaks.Session, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Fails the test that leaves something behind; keeps it out of the person's own state directory."""
    docker = request.getfixturevalue("docker_session") if "dockerd" in request.fixturenames else None
    gate = leaks.Gate(leak_session, lambda: docker.engine if docker and docker.pid else None)
    before = {key: os.environ.get(key) for key in (space.MARK, "AGENTBOX_HOME")}
    os.environ[space.MARK] = leak_session.mark
    os.environ["AGENTBOX_HOME"] = str(tmp_path_factory.getbasetemp() / "home-of-no-test")
    yield
    for key, value in before.items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    if left := gate.leaks():
        pytest.fail(f"the test left behind: {left}", pytrace=False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private state directory, not made yet; AGENTBOX_HOME points to it."""
    path = tmp_path / "home"
    monkeypatch.setenv("AGENTBOX_HOME", str(path))
    return path


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process beside the run, of the same kind as its members, that must be alive at the end."""
    process = subprocess.Popen(["sleep", "900"], start_new_session=True)
    yield process
    alive = is_alive(process.pid)
    process.kill()
    process.wait()
    assert alive, "the bystander was killed, too"


@pytest.fixture
def free_cgroup() -> Iterator[Path]:
    """An empty cgroup v2 of the test's own, outside agentbox's; all in it ends with the test.

    Where the tests run as a plain user it is made next to the user's own manager's units, if that is allowed.
    """
    mount = space.cgroup2_mount()
    if mount is None:
        pytest.skip("no cgroup v2 mounted")
    own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
    uid = os.getuid()
    manager = mount / f"user.slice/user-{uid}.slice/user@{uid}.service"
    places = [place for place in (mount, mount / own.lstrip("/"), manager) if os.access(place, os.W_OK)]
    if not places:
        pytest.skip("no cgroup that this user may write to")
    path = places[0] / f"{space.PREFIX}-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    yield path
    assert space.end_tree(path), f"{path} cannot be emptied"


@pytest.fixture(scope="session")
def docker_session() -> Iterator[Dockerd]:
    """The session's private docker engine; tests take `dockerd`."""
    if why := dockerd_missing():
        pytest.skip(f"bed dockerd: {why}")
    sweep()
    daemon = Dockerd()
    yield daemon
    daemon.remove()


@pytest.fixture
def dockerd(docker_session: Dockerd, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dockerd]:
    """A running docker engine with the image `tests.beds.dockerd.IMAGE`; DOCKER_HOST points to it."""
    docker_session.start()
    monkeypatch.setenv("DOCKER_HOST", docker_session.host)
    yield docker_session
    docker_session.start()
