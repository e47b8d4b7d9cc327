"""Every parser of what others write, fed with what nobody writes.

Each file of corpus/NAME is given to the parser NAME as it is, and is what hypothesis cuts, joins and mends. Whatever
comes: no error but ours, an answer within bounds, and garbage never counts as permission.

A find of hypothesis is added to the corpus as a small file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.cli import values
from sandbox.cli.table import seconds_text
from sandbox.control import emergency_file, orders, table
from sandbox.errors import AgentboxError
from sandbox.harness.beat import marks
from sandbox.kernel.mounts import directory, parse_mountinfo, parse_proc_cgroup
from sandbox.kernel.procfs import parse_stat
from sandbox.kernel.scan import variables
from sandbox.manifest.fold import fold
from sandbox.manifest.home import Home
from sandbox.manifest.ids import is_id
from sandbox.manifest.reader import read
from sandbox.manifest.redact import command_line, redact_text
from sandbox.manifest.verify import verify
from sandbox.reconcile import mcp_config
from sandbox.reconcile.doorways import moment
from sandbox.reconcile.records import read_run
from sandbox.reconcile.survey import _asker_alive

CORPUS = Path(__file__).parent / "corpus"
GENUINE = re.compile(rb"(RUN|PAUSE|STOP) [0-9]{1,18}\s*")
EXAMPLES, EXAMPLES_FULL = 150, 20_000


def manifest(data: bytes, folder: Path) -> None:
    run = Home(str(folder / "home")).run_dir("r1")
    Path(run.path).mkdir(parents=True, exist_ok=True)
    Path(run.manifest).write_bytes(data)
    reading = read(run.manifest, "r1")
    records = list(reading)
    assert len(records) + reading.bad_count <= data.count(b"\n") + 1
    whole = fold(records)
    verdict = verify(run.manifest)
    assert verdict.whole or verdict.problems
    seen = read_run(Home(str(folder / "home")), "r1")
    # It does not decode each line, so that it may miss a bad one; of a good record it tells the same.
    assert not seen.unreadable and (not seen.whole or seen.bad_count <= reading.bad_count)
    if seen.whole and verdict.whole and not reading.bad_count:
        assert (seen.run.ended is None) == (whole.ended is None)
        assert set(seen.run.tasks) == set(whole.tasks)


def order(data: bytes, folder: Path) -> None:
    path = folder / "control"
    path.write_bytes(data)
    found = orders.read_order(str(path))
    assert found.word in orders.WORDS and 0 <= found.patience <= orders.PATIENCE_MAX
    if found.word != "STOP":
        assert found.trusted and GENUINE.fullmatch(
            re.split(rb"[\r\n\v\f\x1c-\x1e]|\xc2\x85|\xe2\x80[\xa8\xa9]", data)[0]
        )
    _asker_alive(found)
    moment(found.at)


def emergency(data: bytes, folder: Path) -> None:
    home = Home(str(folder / "emergency"))
    Path(home.path).mkdir(exist_ok=True)
    Path(home.emergency_stop).write_bytes(data)
    found = emergency_file.look(home)
    assert found.on is True and orders.emergency_stop(home.emergency_stop)
    assert all(text.isprintable() for text in (found.since, found.by, found.reason))
    json.dumps(found.as_dict())


def redirect(data: bytes, folder: Path) -> None:
    try:
        rows = table.parse(data.decode("utf-8", "surrogateescape"), ["a", "b"])
    except AgentboxError as error:
        assert str(error).isprintable()
    else:
        assert sorted(row.task for row in rows) == ["a", "b"]
        assert all(row.action in table.ACTIONS for row in rows)


def harness(data: bytes, folder: Path) -> None:
    for name, kind in (("mcp.json", "claude"), ("config.toml", "codex")):
        path = folder / name
        path.write_bytes(data)
        for found in mcp_config.read_file(str(path), kind, str(folder)):
            assert found.argv and all(isinstance(word, str) for word in (found.name, *found.argv))


def beat(data: bytes, folder: Path) -> None:
    path = folder / "beat"
    path.write_bytes(data)
    found = marks(str(path))
    assert len(found) <= data.count(b"\n") + 1
    for mark in found:
        assert len(mark.name) <= 64
        seconds_text(0 - mark.at)


def stat(data: bytes, folder: Path) -> None:
    found = parse_stat(data)
    if found is not None:
        assert int(data[: data.index(b"(")]) == found.pid and found.state.isascii()


def mountinfo(data: bytes, folder: Path) -> None:
    for mount in parse_mountinfo(data):
        where = directory("/agentbox/r1", mount)
        assert where is None or "/agentbox/r1".endswith(where[len(mount.point.rstrip("/")) :])


def cgroup(data: bytes, folder: Path) -> None:
    found = parse_proc_cgroup(data)
    assert found is None or found.startswith("/")


def environ(data: bytes, folder: Path) -> None:
    found = variables(data)
    assert len(found) <= data.count(b"\0") + 1


def argv(data: bytes, folder: Path) -> None:
    words = data.decode("utf-8", "surrogateescape").split("\0")
    assert isinstance(redact_text(words[0]), str)
    assert isinstance(command_line(words, "x"), str)


def options(data: bytes, folder: Path) -> None:
    text = data.decode("utf-8", "surrogateescape")
    bounds: list[tuple[Callable[[str], float], float]] = [
        (values.duration, values._LONGEST),
        (values.size, 2.0**63),
        (values.count, 2.0**31),
        (values.cores, 100_000.0),
    ]
    for parse, most in bounds:
        try:
            assert 0 <= parse(text) <= most
        except AgentboxError as error:
            assert str(error).isprintable()
    for several in (values.labels, values.environment):
        try:
            several([text])
        except AgentboxError as error:
            assert str(error).isprintable()
    assert not is_id(text) or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text)


PARSERS = {
    parse.__name__: parse
    for parse in (manifest, order, emergency, redirect, harness, beat, stat, mountinfo, cgroup, environ, argv, options)
}
CASES = sorted(path.relative_to(CORPUS) for path in CORPUS.glob("*/*"))


def seeds(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def torn(found: list[bytes]) -> st.SearchStrategy[bytes]:
    """A file of the corpus, cut in two with something between, pieces of others, or all made up."""
    piece = st.sampled_from(found).flatmap(
        lambda data: st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(
            lambda ends: data[min(ends) : max(ends)]
        )
    )
    middle = st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [b"\n", b"\0", b'"', b"\\", b"\xc2\xb2", b"9" * 5000, b"[" * 3000, b"nan", b"1e999", b"\xed\xa0\x80"]
        ),
    )
    return st.lists(st.one_of(piece, middle), max_size=6).map(b"".join) | st.binary(max_size=200)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_corpus(case: Path, tmp_path: Path) -> None:
    PARSERS[case.parts[0]]((CORPUS / case).read_bytes(), tmp_path)


@pytest.mark.limit(1800)
@pytest.mark.parametrize("name", PARSERS)
def test_parser(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    most = EXAMPLES_FULL if request.config.getoption("--full") else EXAMPLES

    @settings(
        max_examples=most, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(torn(seeds(name)))
    def feed(data: bytes) -> None:
        PARSERS[name](data, tmp_path)

    feed()


@pytest.mark.parametrize("opening", ["/*", '"\\', '\\"', '"', "//", ",", "[", '{"', "/**"])
def test_a_large_file_of_openings_is_no_way_to_hold_up_the_reconciler(opening: str, tmp_path: Path) -> None:
    """Bounded by the test's own limit: in the square of its length this would take a day."""
    path = tmp_path / "mcp.json"
    path.write_text((opening * (2 << 20))[: 4 << 20])
    assert mcp_config.read_file(str(path), "project", str(tmp_path)) == []
