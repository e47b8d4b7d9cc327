"""The form of a record, and of the line that it becomes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.manifest.record import EVENTS, MAX_LINE, digest, encode, make, whoami
from tests.support import agentbox_env

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def test_every_record_has_its_envelope() -> None:
    before = time.time()
    record = make("r1", "note", task_id="main", by=whoami(inside=False), text="hello")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record["ts"])
    assert before - 1 < datetime.fromisoformat(record["ts"]).timestamp() < time.time() + 1
    assert record["mono"] <= time.monotonic() + 1
    with open("/proc/sys/kernel/random/boot_id") as file:
        assert record["boot_id"] == file.read().strip()
    assert record["by"] == {"uid": os.getuid(), "pid": os.getpid(), "inside": False}
    assert (record["v"], record["run_id"], record["task_id"], record["event"]) == (1, "r1", "main", "note")
    assert record["host"] == os.uname().nodename and record["text"] == "hello"


def test_a_caller_can_not_write_the_envelope_or_an_unknown_event() -> None:
    with pytest.raises(ValueError, match="ts"):
        make("r1", "note", ts="then")
    with pytest.raises(ValueError, match="no such event"):
        make("r1", "notes")


def test_the_events_are_those_of_the_design() -> None:
    assert len(EVENTS) == len(set(EVENTS)) == 12


@given(st.binary(max_size=50))
def test_bytes_of_an_argv_survive(raw: bytes) -> None:
    arg = os.fsdecode(raw)
    line = encode({"argv": [arg]})
    assert line.isascii() and line.count(b"\n") == 1
    assert os.fsencode(json.loads(line)["argv"][0]) == raw


@given(JSON)
def test_whatever_the_value_it_is_one_line_of_strict_json(value: Any) -> None:
    line = encode({"value": value})
    assert line.isascii() and line.endswith(b"\n") and line.count(b"\n") == 1

    def no_constant(name: str) -> None:
        raise AssertionError(name)

    json.loads(line, parse_constant=no_constant)


def test_what_json_does_not_know_becomes_text() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert (
        json.loads(encode({"a": {2, 1}, "b": b"\xff", "c": ValueError("x"), "d": 10**5000, "e": deep}))["b"] == "\udcff"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"argv": ["x" * 131071] * 100},
        {"processes": [{"pid": pid, "argv": ["\udcff" * 40] * 30} for pid in range(10_000)]},
        {"text": "x" * (MAX_LINE * 2)},
        {"table": {"k" * 4000 + str(i): {"k" * 4000 + str(j): 1 for j in range(100)} for i in range(100)}},
    ],
    ids=["argv", "processes", "text", "keys"],
)
def test_a_record_is_never_longer_than_a_reader_takes(fields: dict[str, Any]) -> None:
    line = encode(make("r1", "note", **fields) | {"prev": "p"})
    assert len(line) <= MAX_LINE + 1
    record = json.loads(line)
    assert record["cut"] is True and record["run_id"] == "r1" and record["prev"] == "p"


def test_the_digest_is_the_one_of_b2sum() -> None:
    line = b'{"v":1}'
    told = subprocess.run(["b2sum", "-l", "256"], input=line, capture_output=True, check=True).stdout
    assert told.split()[0].decode() == digest(line)


def test_writing_loads_little() -> None:
    heavy = ["hashlib", "subprocess", "socket", "datetime", "pathlib", "typer", "logging", "tempfile"]
    code = f"import sys, sandbox.manifest.writer; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        capture_output=True, text=True, check=True, env=agentbox_env(),
    )  # fmt: skip
    assert told.stdout.strip() == "[]"
