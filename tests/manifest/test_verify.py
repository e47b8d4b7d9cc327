"""What was changed, removed or put in is told; what can't be told is said."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from sandbox.manifest.record import digest
from sandbox.manifest.verify import Verdict, verify
from sandbox.manifest.writer import Writer

COUNT = 6


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "manifest.jsonl")
    writer = Writer(path, "r1")
    writer.append("run.created", argv=["x"])
    for number in range(1, COUNT):
        writer.append("note", text=f"record {number}")
    return path


def lines(path: str) -> list[bytes]:
    return Path(path).read_bytes().splitlines()


def put(path: str, new: list[bytes]) -> Verdict:
    Path(path).write_bytes(b"".join(line + b"\n" for line in new))
    return verify(path)


def test_an_untouched_manifest_is_whole_and_says_what_that_does_not_mean(path: str) -> None:
    verdict = verify(path)
    assert verdict.whole and verdict.problems == [] and verdict.records == COUNT
    assert verdict.head == digest(lines(path)[-1])
    (limit,) = verdict.cannot_tell
    assert "at the end" in limit and "whole file" in limit


@pytest.mark.parametrize("at", range(COUNT - 1))
def test_a_record_changed_in_place_is_told(path: str, at: int) -> None:
    changed = lines(path)
    changed[at] = changed[at].replace(b'"uid":', b'"uid":1')
    verdict = put(path, changed)
    assert not verdict.whole
    assert verdict.problems[0].offset == sum(len(line) + 1 for line in changed[: at + 1])


@pytest.mark.parametrize("at", range(COUNT - 1))
@pytest.mark.parametrize("junk", [b"x", b"", b"{", b"\0" * 100])
def test_a_record_overwritten_with_junk_is_told(path: str, at: int, junk: bytes) -> None:
    changed = lines(path)
    changed[at] = junk
    assert not put(path, changed).whole


@pytest.mark.parametrize("at", range(COUNT - 1))
def test_a_removed_record_is_told(path: str, at: int) -> None:
    left = lines(path)
    del left[at]
    assert not put(path, left).whole


@pytest.mark.parametrize("at", range(COUNT - 1))
def test_two_records_in_each_others_place_are_told(path: str, at: int) -> None:
    swapped = lines(path)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    assert not put(path, swapped).whole


@pytest.mark.parametrize("at", range(COUNT + 1))
def test_a_record_put_in_is_told(path: str, at: int) -> None:
    more = lines(path)
    more.insert(at, b'{"v":1,"run_id":"r1","event":"note","prev":"","text":"never happened"}')
    assert not put(path, more).whole


@pytest.mark.parametrize("at", range(COUNT))
def test_a_repeated_record_is_told(path: str, at: int) -> None:
    more = lines(path)
    more.insert(at, more[at])
    assert not put(path, more).whole


def test_carriage_returns_are_a_change(path: str) -> None:
    assert not put(path, [line + b"\r" for line in lines(path)]).whole


def test_a_link_without_a_reason_is_told(path: str) -> None:
    record = json.loads(lines(path)[-1])
    for wrong in ({"prev": None}, {"prev": 5}, {"prev": None, "unlocked": 5}):
        verdict = put(path, [*lines(path)[: COUNT - 1], json.dumps(record | wrong).encode()])
        assert not verdict.whole and "no digest" in verdict.problems[0].what


def test_a_record_of_another_run_is_told(path: str) -> None:
    Writer(path, "r2").append("note", text="x")
    assert [problem.what for problem in verify(path).problems] == ["a record of another run"]
    assert len(verify(path, run_id="r3").problems) == COUNT + 1


@pytest.mark.parametrize("keep", range(1, COUNT))
def test_a_cut_end_is_told_by_the_head_that_was_kept_outside(path: str, keep: int) -> None:
    head = verify(path).head
    assert put(path, lines(path)[:keep]).whole
    verdict = verify(path, head=head)
    assert not verdict.whole and "is gone" in verdict.problems[0].what


def test_a_head_still_in_the_chain_is_fine_as_the_manifest_grows(path: str) -> None:
    head = verify(path).head
    assert verify(path, head=head).whole
    Writer(path, "r1").append("note", text="later")
    verdict = verify(path, head=head)
    assert verdict.whole and "after the given head" in verdict.cannot_tell[0]
    assert verify(path, head="0" * 64).whole is False


def test_a_missing_and_an_emptied_manifest(path: str, tmp_path: Path) -> None:
    head = verify(path).head
    gone = verify(str(tmp_path / "none"))
    assert gone.missing and not gone.whole
    Path(path).write_bytes(b"")
    assert verify(path).whole and not verify(path, head=head).whole


def test_a_file_begun_anew_says_that_something_may_have_stood_before(tmp_path: Path) -> None:
    path = str(tmp_path / "m")
    Writer(path, "r1").append("note", text="x")
    verdict = verify(path)
    assert verdict.whole and any("not run.created" in limit for limit in verdict.cannot_tell)


def torn_in_the_middle(path: str) -> int:
    """Offset of a torn line, after which the writer went on."""
    at = Path(path).stat().st_size
    with open(path, "ab") as file:
        file.write(b'{"v":1,"torn')
    Writer(path, "r1").append("note", text="after the crash")
    return at


def test_a_torn_line_is_no_tampering(path: str) -> None:
    at = torn_in_the_middle(path)
    verdict = verify(path)
    assert verdict.whole and [finding.offset for finding in verdict.torn] == [at] and len(verdict.cannot_tell) == 1


@pytest.mark.parametrize("drop", [0, COUNT - 1, COUNT, COUNT + 1])
def test_beside_a_torn_line_a_removed_record_is_still_told(path: str, drop: int) -> None:
    """The record before it, the torn line itself, and the note that marks it."""
    torn_in_the_middle(path)
    left = lines(path)
    del left[drop]
    assert not put(path, left).whole


def test_a_torn_line_that_nobody_marked_is_said_to_hide_what_was_before(path: str) -> None:
    fragment = b'{"v":1,"torn'
    with open(path, "ab") as file:
        file.write(fragment + b"\n")
    Writer(path, "r1").append("note", text="after")
    verdict = verify(path)
    assert verdict.whole and any("before the torn one" in limit for limit in verdict.cannot_tell)


def test_an_unlocked_record_is_shown_with_its_reason(path: str) -> None:
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        Writer(path, "r1").append("note", text="x", lock_deadline=0)
        Writer(path, "r1").append("note", text="y", lock_deadline=0)
    Writer(path, "r1").append("note", text="z")
    verdict = verify(path)
    assert verdict.whole and len(verdict.unlocked) == 2
    assert any("without the lock" in limit for limit in verdict.cannot_tell)


def test_a_locked_writer_overtaken_by_an_unlocked_one_is_no_break(path: str) -> None:
    """It had read the last line before the other's came in; so it links past it."""
    had = lines(path)
    record = json.loads(had[-1]) | {"prev": digest(had[-1])}
    overtaking = json.dumps(record | {"prev": None, "unlocked": "held", "text": "overtakes"}).encode()
    locked = json.dumps(record | {"text": "links past"}).encode()
    assert put(path, [*had, overtaking, locked]).whole


def test_many_torn_lines_do_not_make_it_slow(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x\n" * 100_000)
    Writer(path, "r1").append("note", text="after")
    verdict = verify(path)
    assert verdict.whole and len(verdict.torn) == 100_000
