"""Appends: whole, chained, in one order, from many processes, with and without the lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.manifest.reader import read
from sandbox.manifest.record import digest
from sandbox.manifest.verify import verify
from sandbox.manifest.writer import RecordError, Writer
from tests.support import agentbox_env, wait_for

MANY = """
import sys
from sandbox.manifest.writer import Writer
writer = Writer(sys.argv[1], "r1")
for number in range(int(sys.argv[3])):
    # Lines of many pages: another may see them half written.
    text = f"{sys.argv[2]}-{number} " + "x" * (number * 997 % 30_000)
    writer.append("note", text=text, lock_deadline=float(sys.argv[4]))
"""


def python(code: str, *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *args], env=agentbox_env())


def race(path: str, count: int, appends: int, deadline: float) -> list[str]:
    """Texts of all records, after `count` processes wrote `appends` each at the same time."""
    writers = [python(MANY, path, str(number), str(appends), str(deadline)) for number in range(count)]
    assert [writer.wait() for writer in writers] == [0] * count
    reading = read(path)
    texts = [record["text"].split()[0] for record in reading]
    assert reading.bad == []
    assert sorted(texts) == sorted(f"{w}-{n}" for w in range(count) for n in range(appends))
    for writer in range(count):
        mine = [text for text in texts if text.startswith(f"{writer}-")]
        assert mine == [f"{writer}-{number}" for number in range(appends)]
    return texts


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "manifest.jsonl")


@pytest.fixture
def held(path: str) -> Iterator[None]:
    """Somebody else holds the lock."""
    Writer(path, "r1").append("run.created", argv=["x"])
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


def test_records_are_chained_and_private(path: str) -> None:
    before = os.umask(0o777)
    try:
        written = [Writer(path, "r1").append("note", text=str(number), sync=True) for number in range(5)]
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    lines = Path(path).read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line)["prev"] for line in lines] == ["", *(digest(line) for line in lines[:-1])]
    assert list(read(path)) == written
    verdict = verify(path)
    assert verdict.whole and verdict.records == 5 and verdict.head == digest(lines[-1])


def test_the_documented_jq_line_works(path: str) -> None:
    writer = Writer(path, "r1")
    writer.append("run.created", argv=["a", "\udcff", "ü"])
    writer.append("task.started", task_id="main", pid=4711, start_ticks=5, argv=["a"])
    Writer(path, "r2").append("task.started", task_id="main", pid=12)
    told = subprocess.run(
        ["jq", "-r", "--arg", "run", "r1", "select(.run_id == $run and .pid) | .pid", path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == "4711\n"


def test_eight_processes_at_once_make_one_whole_chain(path: str) -> None:
    race(path, 8, 200, deadline=60)
    verdict = verify(path)
    assert verdict.whole and not verdict.unlocked and not verdict.torn and verdict.records == 1600


def test_writers_that_never_wait_lose_nothing_and_are_not_called_broken(path: str) -> None:
    race(path, 6, 200, deadline=0.0005)
    verdict = verify(path)
    assert verdict.whole, verdict.problems
    assert verdict.records == 1200 and not verdict.torn


def test_a_held_lock_delays_no_longer_than_the_deadline_and_is_told(path: str, held: None) -> None:
    record = Writer(path, "r1").append("stop.receipt", reason="now", lock_deadline=0.05)
    assert record["prev"] is None and record["unlocked"] == "the lock was held for 0.05 s"
    assert list(read(path))[-1] == record
    verdict = verify(path)
    assert verdict.whole and [finding.what for finding in verdict.unlocked] == [record["unlocked"]]


def test_the_chain_goes_on_after_an_unlocked_record(path: str) -> None:
    writer = Writer(path, "r1")
    writer.append("run.created", argv=["x"])
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        writer.append("note", text="in between", lock_deadline=0)
    last = writer.append("note", text="after")
    assert last["prev"] == digest(Path(path).read_bytes().split(b"\n")[1])
    assert verify(path).whole


def test_without_the_lock_a_torn_tail_is_not_glued_to(path: str, held: None) -> None:
    with open(path, "ab") as file:
        file.write(b'{"v":1,"half')
    Writer(path, "r1").append("note", text="kept", lock_deadline=0)
    assert [record.get("text") for record in read(path)] == [None, "kept"]


def test_a_torn_tail_is_ended_kept_and_marked(path: str) -> None:
    writer = Writer(path, "r1")
    writer.append("run.created", argv=["x"])
    whole = os.path.getsize(path)
    with open(path, "ab") as file:
        file.write(b'{"a":1')
    writer.append("note", text="after")
    lines = Path(path).read_bytes().splitlines()
    assert lines[1] == b'{"a":1'
    reading = read(path)
    _first, note, after = list(reading)
    assert note["torn"] == {"offset": whole, "length": 6, "after": digest(lines[0])}
    assert (note["prev"], after["prev"]) == (digest(lines[1]), digest(lines[2]))
    assert [(bad.offset, bad.length) for bad in reading.bad] == [(whole, 6)]
    verdict = verify(path)
    assert verdict.whole and [finding.offset for finding in verdict.torn] == [whole]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"x" * 10_000_000, b"\n\n\n", b"\xff\xfe", b"\n{", b"{}\n\n"])
def test_whatever_the_tail_the_next_record_is_readable(path: str, tail: bytes) -> None:
    writer = Writer(path, "r1")
    writer.append("run.created", argv=["x"])
    with open(path, "ab") as file:
        file.write(tail)
    record = writer.append("note", text="after")
    assert list(read(path))[-1] == record
    assert verify(path).whole == (tail != b"{}\n\n")


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory", "socket", "device"])
def test_what_is_no_file_never_hangs_a_writer(tmp_path: Path, path: str, kind: str) -> None:
    target = tmp_path / "target"
    target.write_text("")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "symlink":
        os.symlink(target, path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif os.geteuid() == 0:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    else:
        os.symlink("/dev/null", path)
    with pytest.raises(RecordError) as caught:
        Writer(path, "r1").append("note", text="x", sync=True)
    assert "\n" not in str(caught.value) and "move it away" in str(caught.value)
    assert target.read_text() == ""


def test_a_run_without_its_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="directory is gone"):
        Writer(str(tmp_path / "gone" / "manifest.jsonl"), "r1").append("note", text="x")


def test_a_size_limit_is_an_error_and_leaves_nothing_unreadable(path: str) -> None:
    code = """
import resource, signal, sys
from sandbox.manifest.writer import RecordError, Writer
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
writer = Writer(sys.argv[1], "r1")
kept = 0
try:
    while True:
        writer.append("note", text="x" * 700)
        kept += 1
except RecordError as error:
    print(error, file=sys.stderr)
    sys.exit(kept)
"""
    kept = python(code, path).wait()
    assert 3 < kept < 8
    Writer(path, "r1").append("note", text="after")
    texts = [record["text"] for record in read(path)]
    assert texts.count("x" * 700) == kept and texts[-1] == "after"
    assert verify(path).whole


def open_files(pid: int) -> list[str]:
    """What a process has open; it may close some meanwhile, as a loader does."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def test_no_child_inherits_the_file_or_its_lock(path: str) -> None:
    """Children are started, keeping every descriptor that can be kept, while another thread appends."""
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            Writer(path, "r1").append("note", text="x")

    thread = threading.Thread(target=append)
    thread.start()
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(20):
            child = subprocess.Popen(["sleep", "60"], close_fds=False)
            children.append(child)
            assert path not in open_files(child.pid)
    finally:
        stop.set()
        thread.join()
        for child in children:
            child.kill()
            child.wait()
    assert verify(path).whole


def test_a_fork_without_exec_does_not_keep_the_lock(path: str) -> None:
    """Forked in the middle of appends, the children sleep on; still nobody has to wait for the lock."""
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            Writer(path, "r1").append("note", text="x")

    thread = threading.Thread(target=append)
    thread.start()
    pids = []
    for _ in range(30):
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        pids.append(pid)
    stop.set()
    thread.join()
    try:
        assert Writer(path, "r1").append("note", text="last", lock_deadline=5)["prev"]
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def test_nothing_is_open_between_records(path: str) -> None:
    writer = Writer(path, "r1")
    writer.append("note", text="x", sync=True)
    assert path not in [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]


def test_a_waiting_writer_gets_the_lock_as_soon_as_it_is_free(path: str) -> None:
    Writer(path, "r1").append("run.created", argv=["x"])
    with open(path, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        waiting = python(MANY, path, "w", "1", "60")
        wait_for(lambda: path in _opened(waiting.pid), what="the writer has opened the manifest")
    assert waiting.wait() == 0
    assert list(read(path))[-1]["prev"]


def _opened(pid: int) -> list[str]:
    return [os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
