"""Whatever stands in a manifest, a reader goes on, counts it, and stays small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.errors import AgentboxError
from sandbox.manifest.fold import fold
from sandbox.manifest.reader import read, tail
from sandbox.manifest.record import MAX_LINE
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import Writer
from tests.support import agentbox_env

GOOD = b'{"v":1,"run_id":"r1","event":"note","text":"good"}\n'

BAD = [
    (b"\n", None),
    (b"{\n", "not JSON"),
    (b"\0\0\0\0\n", "not JSON"),
    (b"\0" + GOOD, "not JSON"),
    (b"\xff\xfe{}\n", "not UTF-8"),
    (b'"\xed\xb2\x80"\n', "not UTF-8"),
    (b"\xef\xbb\xbf" + GOOD, "not JSON"),
    (b"[1]\n", "not an object"),
    (b"null\n", "not an object"),
    (b"7\n", "not an object"),
    (b"[" * 200_000 + b"\n", "nested too deep"),
    (b'{"a":' * 200_000 + b"\n", "nested too deep"),
    (b'{"run_id":"r1","pid":' + b"9" * 5000 + b"}\n", "not JSON"),
    (b'{"run_id":"r1","pid":NaN}\n', "NaN is no JSON number"),
    (b'{"run_id":"r1","pid":-Infinity}\n', "-Infinity is no JSON number"),
    (b'{"run_id":"r1","pid":1e999}\n', "1e999 is no JSON number"),
    (GOOD.replace(b"r1", b"r2"), "a record of another run"),
    (b'{"event":"note"}\n', "a record without run_id"),
    (b'{"run_id":["r1"]}\n', "a record of another run"),
    (b'{"run_id":"r1","text":"' + b"x" * MAX_LINE + b'"}\n', "longer than 8 MiB"),
    (GOOD + b'{"run_id":"r1","eve', "cut short"),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "manifest.jsonl")


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[f"{number}" for number in range(len(BAD))])
def test_a_bad_line_is_skipped_counted_and_told(path: str, line: bytes, reason: str | None) -> None:
    ended = line if line.endswith(b"\n") else line + b"\n"
    Path(path).write_bytes(GOOD + ended + GOOD)
    reading = read(path)
    records = list(reading)
    assert [record["text"] for record in records] == ["good"] * (
        3 if line.startswith(GOOD) and reason == "cut short" else 2
    )
    if reason and reason != "cut short":
        (bad,) = reading.bad
        assert (bad.offset, bad.length) == (len(GOOD), len(ended) - 1)
        assert bad.reason.startswith(reason) or reason in bad.reason
    assert reading.bad_count == bool(reason)
    verify(path)
    fold(records)


def test_a_torn_tail_is_told_as_one(path: str) -> None:
    Path(path).write_bytes(GOOD + b'{"run_id":"r1"')
    reading = read(path)
    assert len(list(reading)) == 1 and reading.bad[0].reason.startswith("cut short")


def test_a_whole_last_record_without_its_newline_counts(path: str) -> None:
    Path(path).write_bytes(GOOD + GOOD[:-1])
    reading = read(path)
    assert len(list(reading)) == 2 and reading.bad == []


def test_carriage_returns_and_repeated_keys_are_read_as_jq_reads_them(path: str) -> None:
    Path(path).write_bytes(GOOD[:-1] + b"\r\n" + b'{"run_id":"r0","run_id":"r1","text":"last wins"}\n')
    reading = read(path)
    assert [record["text"] for record in reading] == ["good", "last wins"] and reading.bad == []


def test_the_run_is_the_callers_or_the_first_ones(path: str) -> None:
    other = GOOD.replace(b"r1", b"r2")
    Path(path).write_bytes(other + GOOD)
    assert [record["run_id"] for record in read(path)] == ["r2"]
    reading = read(path, "r1")
    assert [record["run_id"] for record in reading] == ["r1"] and reading.bad[0].offset == 0


def test_a_missing_file_is_empty_and_says_so(path: str) -> None:
    reading = read(path)
    assert list(reading) == [] and reading.missing
    Path(path).write_bytes(b"")
    assert list(reading) == [] and not reading.missing


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
def test_what_is_no_file_is_an_error_and_never_hangs(path: str, kind: str) -> None:
    {"fifo": os.mkfifo, "symlink": lambda p: os.symlink("/dev/zero", p), "directory": os.mkdir}[kind](path)
    for act in (lambda: list(read(path)), lambda: list(tail(path, 0)), lambda: verify(path)):
        with pytest.raises(AgentboxError, match="can't read"):
            act()


def test_many_bad_lines_are_counted_and_not_kept(path: str) -> None:
    Path(path).write_bytes(b"x\n" * 5000 + GOOD)
    reading = read(path)
    assert len(list(reading)) == 1 and reading.bad_count == 5000 and len(reading.bad) == 1000


def test_an_endless_line_takes_no_memory(path: str) -> None:
    Path(path).write_bytes(GOOD)
    os.truncate(path, 400 * 1024 * 1024)
    with open(path, "ab") as file:
        file.write(b"\n" + GOOD)
    code = """
import sys
from sandbox.manifest.reader import read, tail
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import Writer
assert len(list(read(sys.argv[1]))) == 2
verify(sys.argv[1])
Writer(sys.argv[1], "r1").append("note", text="x")
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):  # ru_maxrss would count the parent's (getrusage(2) keeps it over execve)
        print(int(line.split()[1]) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, path], env=agentbox_env(), capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 80


def test_tail_gives_whole_new_lines_only(path: str) -> None:
    follow = tail(path, 0)
    assert list(follow) == [] and follow.missing and follow.offset == 0
    Path(path).write_bytes(GOOD + GOOD[:20])
    follow = tail(path, follow.offset)
    assert len(list(follow)) == 1 and follow.offset == len(GOOD)
    assert list(tail(path, follow.offset)) == []
    with open(path, "ab") as file:
        file.write(GOOD[20:] + b"bad\n" + GOOD)
    follow = tail(path, follow.offset)
    assert len(list(follow)) == 2 and follow.bad_count == 1 and follow.offset == os.path.getsize(path)
    assert list(tail(path, follow.offset)) == []


def test_tail_tells_a_file_that_shrank(path: str) -> None:
    Path(path).write_bytes(GOOD)
    follow = tail(path, 10_000)
    assert list(follow) == [] and follow.shrunk


def test_following_a_growing_file_gives_every_record_once(path: str) -> None:
    writer = Writer(path, "r1")
    got: list[str] = []
    offset = 0
    for number in range(50):
        writer.append("note", text=str(number))
        follow = tail(path, offset, "r1")
        got += [record["text"] for record in follow]
        offset = follow.offset
    assert got == [str(number) for number in range(50)]


PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [GOOD, b"\n", b"\r\n", b"\0", b'{"run_id":"r1"}', b"[[", b"{", b'"', b"\xff", *[b[0] for b in BAD[:10]]]
    ),
)


@given(st.lists(PIECES, max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_read_folded_verified_and_appended_to(path: str, pieces: list[bytes]) -> None:
    Path(path).write_bytes(b"".join(pieces))
    fold(read(path))
    fold(read(path, "r1"))
    verify(path, run_id="r1")
    record = Writer(path, "r1").append("note", text="x")
    assert list(read(path, "r1"))[-1] == record
