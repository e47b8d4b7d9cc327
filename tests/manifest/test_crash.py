"""A writer may die at any byte, and the disk may fill at any byte: what was written stays readable."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.manifest.fold import fold
from sandbox.manifest.reader import read
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import Writer
from tests.support import agentbox_env

ENDLESS = """
import os, sys
from sandbox.manifest.writer import Writer
writer = Writer(sys.argv[1], "r1")
number = int(sys.argv[2])
while True:
    writer.append("note", text=f"{number} " + "x" * (number * 7919 % 300_000))
    os.write(1, b"%d\\n" % number)
    number += 1
"""

FULL = """
import os, sys
from sandbox.manifest.reader import read
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import RecordError, Writer

path = os.path.join(sys.argv[1], "manifest.jsonl")
writer, kept, errors = Writer(path, "r1"), [], []
for number in range(400):
    try:
        kept.append(writer.append("note", text=f"{number} " + "x" * (number * 997 % 9000), sync=number % 3 == 0))
    except RecordError as error:
        errors.append(error)
        assert error.errno == 28, error
        if len(errors) % 20 == 0:
            # Some room, so that the disk fills again and again, at other bytes.
            os.truncate(os.path.join(sys.argv[1], "ballast"), 60_000 - 3000 * (len(errors) // 20))
    assert [record for record in read(path) if "torn" not in record] == kept
verdict = verify(path)
assert verdict.whole, verdict.problems
assert len(errors) > 40, len(errors)
os.unlink(os.path.join(sys.argv[1], "ballast"))
kept.append(writer.append("note", text="after"))
assert [record for record in read(path) if "torn" not in record] == kept
assert verify(path).whole
print("kept", len(kept), "errors", len(errors), "torn", len(verdict.torn), str(errors[0]))
"""


@pytest.mark.limit(600)
def test_writers_killed_at_any_moment_leave_a_readable_chain(tmp_path: Path) -> None:
    path = str(tmp_path / "manifest.jsonl")
    Writer(path, "r1").append("run.created", argv=["x"])
    confirmed: list[int] = []
    seed = random.Random(7)
    for _ in range(25):
        first = confirmed[-1] + 10 if confirmed else 0
        child = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, path, str(first)], env=agentbox_env(), stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        for _ in range(seed.randrange(1, 12)):
            confirmed.append(int(child.stdout.readline()))
        child.kill()
        confirmed += [int(line) for line in child.stdout.read().splitlines()]
        child.stdout.close()
        child.wait()
        verdict = verify(path)
        assert verdict.whole, verdict.problems
    Writer(path, "r1").append("note", text="-1 last")
    texts = [int(record["text"].split()[0]) for record in read(path) if "argv" not in record and "torn" not in record]
    assert set(confirmed) <= set(texts) and len(texts) == len(set(texts))
    verdict = verify(path)
    assert verdict.whole and not verdict.unlocked


def test_cut_at_every_byte_it_is_torn_and_never_broken(tmp_path: Path) -> None:
    path = str(tmp_path / "manifest.jsonl")
    writer = Writer(path, "r1")
    writer.append("run.created", argv=["sh", "-c", "\udcff \n"])
    writer.append("task.intent", task_id="main", argv=["sh"])
    writer.append("task.started", task_id="main", pid=7, start_ticks=8, box={"backend": "cgroup", "id": "x"})
    writer.append("run.ended", code=0, outcome="exited")
    whole = Path(path).read_bytes()
    records = list(read(path))
    ends = [position for position, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole) + 1):
        Path(path).write_bytes(whole[:cut])
        # An object is complete with its last brace; the newline after it may be missing.
        complete = sum(cut >= end for end in ends)
        before = verify(path)
        assert before.whole and list(read(path)) == records[:complete], cut
        fold(read(path))
        last = writer.append("note", text="after")
        after = verify(path)
        got = [record for record in read(path) if "torn" not in record]
        assert got == [*records[:complete], last], cut
        assert after.whole, (cut, after.problems)
        clean = not cut or whole[cut - 1] == 10
        assert len(after.torn) == (0 if clean or cut in ends else 1), (cut, after.torn)


def test_torn_again_while_it_is_mended(tmp_path: Path) -> None:
    """A crash in the middle of the mending note, at each of its bytes."""
    path = str(tmp_path / "manifest.jsonl")
    writer = Writer(path, "r1")
    first = writer.append("run.created", argv=["x"])
    with open(path, "ab") as file:
        file.write(b'{"half')
    torn = os.path.getsize(path)
    writer.append("note", text="after")
    whole = Path(path).read_bytes()
    for cut in range(torn, len(whole) + 1):
        Path(path).write_bytes(whole[:cut])
        last = writer.append("note", text="again")
        got = [record for record in read(path) if "torn" not in record]
        assert got[0] == first and got[-1] == last and verify(path).whole, cut


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a file system of its own")
@pytest.mark.limit(600)
def test_on_a_full_disk_nothing_that_was_confirmed_is_lost(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    script = 'mount -t tmpfs -o size=256k none "$1" && head -c 60000 /dev/zero > "$1/ballast" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", str(mount), sys.executable, FULL],
        capture_output=True, text=True, env=agentbox_env(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No space left" in done.stdout or "is the disk full?" in done.stdout
    assert list(mount.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a file system of its own")
def test_a_read_only_disk_is_an_error_with_its_name(tmp_path: Path) -> None:
    code = """
import sys
from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home
from sandbox.manifest.writer import RecordError, Writer
try:
    Writer(sys.argv[1] + "/m", "r1").append("note", text="x")
except RecordError as error:
    print(error.errno, error)
for home in (Home(sys.argv[1]), Home(sys.argv[1] + "/deep/er")):
    try:
        home.ensure()
    except AgentboxError as error:
        print(error)
"""
    script = 'mount -t tmpfs -o ro none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", str(tmp_path), sys.executable, code],
        capture_output=True, text=True, env=agentbox_env(),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0].startswith("30 could not record") and "read-only" in lines[0], done
    assert len(lines) == 3 and all("Read-only file system; set AGENTBOX_HOME" in line for line in lines[1:]), done
