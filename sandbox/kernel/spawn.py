"""The one place that starts processes: fork, set-up steps in the child, a barrier, exec.

The child runs its steps (enter the box, session, files, signals), says that it is ready, and waits. Only when
it is released does it exec; if the launcher dies before, the barrier's pipe closes and the child exits. So no
instruction of the command runs outside of its box. Sources: fork(2), execve(2), pipe(2), close_range(2).
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

Step = tuple[str, Callable[[], None]]
"""A name for the error line, and what to do in the child; it raises OSError if it can't."""


class ChildFailed(Exception):
    """A step or the exec failed in the child: `step`, `error` (errno), and whether exec was reached."""

    def __init__(self, step: str, error: int) -> None:
        super().__init__(f"{step}: {os.strerror(error) if error else 'the child ended before it was ready'}")
        self.step = step
        self.error = error


class Child:
    """A forked child at its barrier. `pid` is ours to wait for."""

    def __init__(self, pid: int, barrier: int, report: int) -> None:
        self.pid = pid
        self._barrier = barrier
        self._report = report

    def wait_ready(self, seconds: float) -> None:
        """Wait until the steps are done. Raises ChildFailed, also after `seconds`."""
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        if not poll.poll(seconds * 1000):
            raise ChildFailed("set-up", errno.ETIMEDOUT)
        word = os.read(self._report, 512)
        if word != b"ready":
            raise _failure(word)

    def release(self) -> None:
        """Let the child exec. Raises ChildFailed if the exec fails; returns once it has happened."""
        try:
            os.write(self._barrier, b"go")
        except BrokenPipeError:
            raise ChildFailed("set-up", 0) from None
        finally:
            os.close(self._barrier)
            self._barrier = -1
        word = os.read(self._report, 512)
        self._close()
        if word:
            raise _failure(word)

    def abandon(self) -> None:
        """Let the child exit without exec, and reap it. Safe to call at any time before `release`."""
        self._close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ChildProcessError, ProcessLookupError):
            pass

    def _close(self) -> None:
        for fd in (self._barrier, self._report):
            if fd >= 0:
                os.close(fd)
        self._barrier = self._report = -1


def spawn(
    argv: list[bytes], env: Mapping[bytes, bytes], steps: Sequence[Step], before_exec: Step | None = None
) -> Child:
    """Fork a child that runs `steps`, waits at the barrier, runs `before_exec` and execs `argv` with `env`.

    Raises OSError where no process can be made (EAGAIN: pid limit).
    """
    barrier_r, barrier_w = os.pipe()
    report_r, report_w = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        for fd in (barrier_r, barrier_w, report_r, report_w):
            os.close(fd)
        raise
    if pid == 0:
        os.close(barrier_w)
        os.close(report_r)
        _in_child(argv, env, steps, before_exec, barrier_r, report_w)
    os.close(barrier_r)
    os.close(report_w)
    return Child(pid, barrier_w, report_r)


def _in_child(
    argv: list[bytes],
    env: Mapping[bytes, bytes],
    steps: Sequence[Step],
    before_exec: Step | None,
    barrier: int,
    report: int,
) -> None:
    """Never returns: an exception that left this function would run the launcher's code twice."""
    step = "set-up"
    try:
        for step, act in steps:  # noqa: B007
            act()
        os.write(report, b"ready")
        if os.read(barrier, 2) != b"go":
            os._exit(0)
        if before_exec:
            step, act = before_exec
            act()
        step = "exec"
        execute(argv, env)
    except OSError as error:
        os.write(report, f"{error.errno or 0} {step}".encode())
    except BaseException:
        os.write(report, f"0 {step}".encode())
    finally:
        os._exit(126)


def execute(argv: list[bytes], env: Mapping[bytes, bytes]) -> None:
    """execvp(3): look `argv[0]` up in `env`'s PATH; a script without `#!` goes to /bin/sh. Raises OSError."""
    denied: OSError | None = None
    for path in candidates(argv[0], env):
        try:
            os.execve(path, argv, env)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                os.execve(b"/bin/sh", [b"/bin/sh", path, *argv[1:]], env)
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                continue
            denied = denied or error
    raise denied or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def candidates(name: bytes, env: Mapping[bytes, bytes]) -> list[bytes]:
    """The paths to try for a command, in order."""
    if b"/" in name or not name:
        return [name]
    path = env.get(b"PATH", b"/bin:/usr/bin")
    return [os.path.join(folder or b".", name) for folder in path.split(b":")]


def find_command(name: bytes, env: Mapping[bytes, bytes]) -> int:
    """Would `execute` find something to run? 0, or the errno that it would meet."""
    answer = errno.ENOENT
    for path in candidates(name, env):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return 0
        if os.path.exists(path):
            answer = errno.EACCES
    return answer


def close_from(lowest: int) -> None:
    """Close every descriptor from `lowest` up, those above a limit that was lowered since too (getrlimit(2))."""
    os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))
    try:
        left = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return
    os.closerange(lowest, max(left) + 1)


def _failure(word: bytes) -> ChildFailed:
    number, _, step = word.decode("ascii", "replace").partition(" ")
    return ChildFailed(step or "set-up", int(number) if number.isdigit() else 0)


def fork_reporting(body: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that runs `body` with the writing end of a pipe; returns its pid and the reading end.

    The child ends when `body` returns, whatever it raises. Raises OSError where no process can be made.
    """
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        try:
            os.close(reader)
            body(writer)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def apart(work: Callable[[], str], seconds: float) -> str:
    """Run `work` in a forked child and return its text: what it imports and where it hangs stay there.

    Raises TimeoutError after `seconds` (the child is killed), OSError if no child can be made, and
    RuntimeError with the message of whatever `work` raised.
    """
    pid, reader = fork_reporting(lambda writer: _answer(work, writer))
    try:
        text = _read_until_end(reader, seconds)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if not text:
        raise RuntimeError("the helper process ended without an answer")
    if text[:1] == b"!":
        raise RuntimeError(text[1:].decode("utf-8", "replace"))
    return text[1:].decode("utf-8", "surrogateescape")


def _answer(work: Callable[[], str], writer: int) -> None:
    try:
        text = b"=" + work().encode("utf-8", "surrogateescape")
    except BaseException as error:
        text = b"!" + (str(error) or type(error).__name__).encode("utf-8", "replace")
    while text:
        text = text[os.write(writer, text) :]


def _read_until_end(reader: int, seconds: float) -> bytes:
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    text = b""
    while True:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        part = os.read(reader, 1 << 16)
        if not part:
            return text
        text += part


def capture(
    argv: Sequence[str | bytes],
    env: Mapping[bytes, bytes],
    cwd: str,
    seconds: float,
    stdin: bytes = b"",
    stop: Callable[[], object] | None = None,
) -> tuple[int, bytes, bytes]:
    """Run a command to its end; its status (negative: the signal), stdout and stderr. For verbs that are not hot.

    It has a session of its own and no terminal, so that nothing can prompt. Raises TimeoutError after `seconds`,
    InterruptedError once `stop()` says so, both with the command ended; OSError if it can't be started.
    """
    import subprocess

    deadline = time.monotonic() + seconds
    child = _popen(argv, env, cwd)
    given: bytes | None = stdin
    while True:
        try:
            out, err = child.communicate(given, timeout=min(0.2, max(0.0, deadline - time.monotonic())))
            return child.returncode, out, err
        except subprocess.TimeoutExpired:
            given = None
        except BaseException:
            _end_group(child.pid, lambda: child.communicate(timeout=2))
            raise
        if time.monotonic() >= deadline or (stop and stop()):
            _end_group(child.pid, lambda: child.communicate(timeout=2))
            raise InterruptedError if time.monotonic() < deadline else TimeoutError(errno.ETIMEDOUT, "no end")


def capture_all(
    commands: Sequence[Sequence[str | bytes]], env: Mapping[bytes, bytes], cwd: str, seconds: float, at_once: int
) -> list[tuple[int, bytes, bytes]]:
    """Several commands, at most `at_once` at a time; what `capture` gives for each, in their order.

    For commands that say little: what they write is read at the end. Raises TimeoutError after `seconds` for all of
    them, OSError; the others are ended then.
    """
    deadline = time.monotonic() + seconds
    children: list[subprocess.Popen[bytes]] = []

    def wait_below(most: int) -> None:
        while sum(child.poll() is None for child in children) > most:
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            time.sleep(0.01)

    try:
        for argv in commands:
            wait_below(at_once - 1)
            children.append(_popen(argv, env, cwd, given=False))
        wait_below(0)
    except BaseException:
        for child in children:
            if child.poll() is None:
                _end_group(child.pid, lambda child=child: child.communicate(timeout=2))  # type: ignore[misc]
        raise
    return [(child.returncode, *child.communicate(timeout=2)) for child in children]


def _popen(
    argv: Sequence[str | bytes], env: Mapping[bytes, bytes], cwd: str, given: bool = True
) -> subprocess.Popen[bytes]:
    """`given`: it gets something on stdin."""
    import subprocess

    return subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A launcher has its signals blocked, and a child would inherit that (sigprocmask(2)).
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, ()),
    )


def _end_group(group: int, wait: Callable[[], object]) -> None:
    """SIGTERM first: git removes its lock files on that. `wait` raises while something of it holds the output."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return
        try:
            wait()
            return
        except Exception:
            continue
