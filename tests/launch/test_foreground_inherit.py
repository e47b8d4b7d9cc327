"""What a command inherits is the same bare and through the launcher: stdio, argv, environment, limits, signals."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.foreground_bed import BARE, RUN, Way, every_launcher

KINDS = ["tty", "pipe", "file", "null", "closed"]

# What a command sees of its descriptors, written to the file that it is given.
DESCRIPTORS = """
import fcntl, json, os, sys
def look(fd):
    try:
        s = os.fstat(fd)
    except OSError:
        return None
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    return [s.st_mode, s.st_dev, s.st_ino, s.st_rdev, os.isatty(fd), flags, fcntl.fcntl(fd, fcntl.F_GETFD)]
seen = {fd: look(fd) for fd in range(64)}
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.write(out, json.dumps(seen).encode())
"""


def ends(kind: str, folder: Path) -> tuple[int | None, list[int]]:
    """A descriptor of a kind, and what has to be closed after."""
    if kind == "tty":
        master, slave = pty.openpty()
        return slave, [master, slave]
    if kind == "pipe":
        pair = list(os.pipe())
        return pair[1], pair
    if kind == "closed":
        return None, []
    opened = os.open(os.devnull if kind == "null" else folder / "file", os.O_RDWR | os.O_CREAT)
    return opened, [opened]


def descriptors(way: Way, stdio: list[int | None], result: Path) -> object:
    """Run the look with that stdio; what it saw."""
    actions: list[tuple[int, int] | tuple[int, int, int]] = [
        (os.POSIX_SPAWN_CLOSE, number) if fd is None else (os.POSIX_SPAWN_DUP2, fd, number)
        for number, fd in enumerate(stdio)
    ]
    argv = way.argv(sys.executable, "-IS", "-c", DESCRIPTORS, str(result))
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return json.loads(result.read_text())


@every_launcher
@pytest.mark.parametrize("stdin", KINDS)
def test_stdio_in_every_combination(way: Way, stdin: str, tmp_path: Path) -> None:
    for stdout, stderr in itertools.product(KINDS, KINDS):
        made = [ends(kind, tmp_path) for kind in (stdin, stdout, stderr)]
        try:
            stdio = [fd for fd, _ in made]
            bare = descriptors(BARE, stdio, tmp_path / "bare")
            assert descriptors(way, stdio, tmp_path / way.name) == bare, (stdin, stdout, stderr)
        finally:
            for fd in itertools.chain.from_iterable(owned for _, owned in made):
                os.close(fd)


@every_launcher
def test_further_descriptors(way: Way, tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        os.dup2(file.fileno(), 37, inheritable=True)
        try:
            stdio: list[int | None] = [0, 1, 2]
            bare = descriptors(BARE, stdio, tmp_path / "bare")
            assert isinstance(bare, dict) and bare["37"]
            assert descriptors(way, stdio, tmp_path / way.name) == bare
        finally:
            os.close(37)


def output(way: Way, command: list[str | bytes], env: dict[bytes, bytes] | None = None, **how: object) -> bytes:
    argv = [os.fsencode(part) for part in (*way.prefix, *command)]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, timeout=60, **how)  # type: ignore[call-overload]
    assert done.returncode == 0
    assert isinstance(done.stdout, bytes)
    return done.stdout


@every_launcher
@pytest.mark.parametrize("locale", [{}, {b"LC_ALL": b"C"}, {b"LC_ALL": b"C.UTF-8"}, {b"LANG": b"xx_YY"}])
def test_argv_bytes(way: Way, locale: dict[bytes, bytes]) -> None:
    words: list[str | bytes] = [b"\xff\xfe\x80", "", "--", "-d", "--timeout", "a b", "'\"$x\\", "\n", "é", "--", "*"]
    show: list[str | bytes] = ["sh", "-c", 'printf "%s\\0" "$#" "$@"', "name", *words]
    bare = output(BARE, show, {b"PATH": os.environb[b"PATH"], **locale})
    assert output(way, show, {b"PATH": os.environb[b"PATH"], **locale}) == bare
    assert bare.split(b"\0")[0] == b"11"


@every_launcher
@pytest.mark.parametrize("locale", [{}, {b"LC_ALL": b"C"}, {b"LC_CTYPE": b"C.UTF-8"}, {b"LANG": b"xx_YY"}])
def test_environment(way: Way, locale: dict[bytes, bytes]) -> None:
    env = {b"PATH": os.environb[b"PATH"], b"BYTES": b"\xff\n=\x80", b"EMPTY": b"", b"PYTHONPATH": b"/nope", **locale}
    named = rb"(AGENTBOX_)?(RUN_ID|TASK_ID)=|AGENTBOX_(CONTROL|BEAT|BOOT)="
    seen = output(way, ["env", "-0"], env).split(b"\0")
    assert [entry for entry in seen if not re.match(named, entry)] == output(BARE, ["env", "-0"], env).split(b"\0")
    assert len([entry for entry in seen if re.match(named, entry)]) == (7 if way is RUN else 0)


@every_launcher
def test_umask_directory_priority_groups(way: Way, tmp_path: Path) -> None:
    def harder() -> None:
        os.umask(0o137)
        os.nice(3)

    script: list[str | bytes] = ["sh", "-c", "umask; pwd; nice; id; cut -d' ' -f6,7 /proc/self/stat"]
    assert output(way, script, cwd=tmp_path, preexec_fn=harder) == output(BARE, script, cwd=tmp_path, preexec_fn=harder)


@every_launcher
def test_deleted_directory(way: Way, tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    script: list[str | bytes] = ["readlink", "/proc/self/cwd"]

    def enter() -> None:
        os.chdir(gone)
        gone.rmdir()

    assert output(way, script, preexec_fn=enter).endswith(b"/gone (deleted)\n")


@every_launcher
def test_limits(way: Way) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))
        resource.setrlimit(resource.RLIMIT_STACK, (4 << 20, 5 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (50, 60))

    show: list[str | bytes] = ["cat", "/proc/self/limits"]
    assert output(way, show, preexec_fn=lower) == output(BARE, show, preexec_fn=lower)


def as_parent(ignored: set[int], blocked: set[int]) -> Callable[[], None]:
    """What a parent does to its signals before it starts the command."""

    def change() -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    return change


ALL = {int(s) for s in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}


def signal_cases() -> Iterator[tuple[set[int], set[int]]]:
    yield set(), set()
    yield {signal.SIGINT, signal.SIGQUIT}, set()
    yield {signal.SIGHUP}, {signal.SIGUSR1}
    yield {signal.SIGCHLD}, {signal.SIGCHLD}
    yield {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}, {signal.SIGTSTP}
    yield set(), ALL
    yield ALL - {signal.SIGPIPE, signal.SIGXFSZ}, {signal.SIGTERM, signal.SIGINT}


@every_launcher
@pytest.mark.parametrize("ignored, blocked", list(signal_cases()))
def test_signals(way: Way, ignored: set[int], blocked: set[int]) -> None:
    show: list[str | bytes] = ["grep", "-E", "^(Sig(Pnd|Blk|Ign|Cgt)|ShdPnd)", "/proc/self/status"]
    change = as_parent(ignored, blocked)
    bare = output(BARE, show, preexec_fn=change, restore_signals=False)
    assert output(way, show, preexec_fn=change, restore_signals=False) == bare


@every_launcher
def test_sigpipe_is_always_the_default(way: Way) -> None:
    """Python ignores it at its start, so that an ignored one cannot be told from one that was not."""
    change = as_parent({signal.SIGPIPE}, set())
    show: list[str | bytes] = ["grep", "^SigIgn", "/proc/self/status"]
    assert output(way, show, preexec_fn=change, restore_signals=False).split()[1] == b"0000000000000000"
