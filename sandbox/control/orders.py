"""The standing order of a run or a task: a small text file, replaced atomically, read with distrust.

First line: `RUN 3`, `PAUSE 4` or `STOP 5`: the word and its generation. Then `key: value` lines (`at`, `by`,
`reason`) for people. A file that is missing, or is not what was written here, counts as STOP: the agent may
have tried to replace it, and a full disk can still remove it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sandbox.control.clock import now
from sandbox.errors import AgentboxError, Refused
from sandbox.manifest.home import fsync_directory, open_private

WORDS = ("RUN", "PAUSE", "STOP")
SIZE_MAX = 4096
PATIENCE_MAX = 86400.0
"""Seconds; whatever a file says, a launcher does not wait longer for somebody else's kill."""


@dataclass(frozen=True)
class Order:
    """`trusted` is False where the file could not be read as an order, and `reason` says why.

    `patience`: seconds that whoever ordered a stop leaves to what still runs before killing it.
    """

    word: str
    generation: int
    reason: str = ""
    by: str = ""
    at: str = ""
    trusted: bool = True
    patience: float = 0.0


def parse(text: bytes) -> Order | None:
    """An order out of its file's text, or None."""
    lines = text.decode("utf-8", "replace").splitlines()
    word, _, number = (lines[0] if lines else "").partition(" ")
    # A digit of another script is one for str.isdigit, and none for int.
    if word not in WORDS or not (number.isascii() and number.isdigit()) or len(number) > 18:
        return None
    values = {key: value for key, _, value in (line.partition(": ") for line in lines[1:])}
    patience = values.get("patience", "")
    return Order(
        word,
        int(number),
        values.get("reason", ""),
        values.get("by", ""),
        values.get("at", ""),
        patience=min(float(patience), PATIENCE_MAX) if patience.isascii() and patience.isdigit() else 0.0,
    )


def read_order(path: str) -> Order:
    """The order in force. Never raises, never hangs on what stands in the file's place."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return _distrust(path, error.strerror or "cannot be read")
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return _distrust(path, "not a regular file")
        if info.st_uid not in (0, os.stat(os.path.dirname(path)).st_uid):
            return _distrust(path, f"owned by uid {info.st_uid}")
        text = os.read(fd, SIZE_MAX)
        by_hand = text.split()[:1] == [b"STOP"]
        return parse(text) or _distrust(path, "STOP, written by hand" if by_hand else "holds no order")
    except OSError as error:
        return _distrust(path, error.strerror or "cannot be read")
    finally:
        os.close(fd)


def _distrust(path: str, why: str) -> Order:
    return Order("STOP", 0, f"{os.path.basename(path)}: {why}", trusted=False)


def write_order(path: str, word: str, *, reason: str = "", by: str = "", patience: float = 0.0) -> Order:
    """Replace the order: temporary file, fsync, rename, fsync of the directory. Raises OSError.

    The generation is one above the one read. A STOP that stands is never replaced by this: see `loosen`.
    """
    standing = read_order(path)
    order = Order(word, standing.generation + 1, _one_line(reason), _one_line(by), now(), patience=patience)
    _put(path, order, os.rename)
    return order


def create_order(path: str, *, by: str) -> Order:
    """Make the first order, RUN, of a run or task. FileExistsError if one is there: it was made, or stopped, before."""
    order = Order("RUN", 1, "created", _one_line(by), now())
    _put(path, order, os.link)
    return order


def _put(path: str, order: Order, place: Callable[[str, str], None]) -> None:
    text = f"{order.word} {order.generation}\nat: {order.at}\nby: {order.by}\nreason: {order.reason}\n"
    if order.patience:
        text += f"patience: {order.patience:.0f}\n"
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{os.getpid()}"
    fd = open_private(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        raw = text.encode()
        if os.write(fd, raw) != len(raw):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(fd)
        place(temporary, path)
    finally:
        os.close(fd)
        _unlink(temporary)
    fsync_directory(folder)


def order_stop(path: str, *, reason: str, by: str, patience: float = 0.0) -> tuple[Order, str]:
    """Make STOP stand; returns it and "" or why it could not be written as usual.

    Where it can't be written (full disk), the file is removed instead: missing counts as STOP.
    """
    standing = read_order(path)
    if standing.word == "STOP" and standing.trusted:
        return standing, ""
    try:
        return write_order(path, "STOP", reason=reason, by=by, patience=patience), ""
    except OSError as error:
        _unlink(path)
        return read_order(path), f"the stop order could not be written: {error.strerror}"


def loosen(path: str, word: str, *, reason: str = "", by: str = "") -> Order:
    """Write RUN or PAUSE under the orders' lock, unless STOP stands. Raises Refused, OSError."""
    with locked(os.path.dirname(path), seconds=5.0):
        standing = read_order(path)
        if standing.word == "STOP":
            raise Refused(f"a stop order stands ({standing.reason or 'STOP'})", fix="STOP is final for a run")
        return write_order(path, word, reason=reason, by=by)


def stands_for_good(path: str, *, reason: str, by: str) -> bool:
    """After a stop: is STOP in force with nobody about to replace it? If not, it is written once more.

    A `loosen` that had read the old order may have overwritten the stop; whoever comes after reads STOP. So
    False means: list and kill once more.
    """
    try:
        with locked(os.path.dirname(path), seconds=1.0):
            if read_order(path).word == "STOP":
                return True
            order_stop(path, reason=reason, by=by)
    except (AgentboxError, OSError):
        return read_order(path).word == "STOP"
    return False


@contextmanager
def locked(folder: str, seconds: float) -> Iterator[None]:
    """flock(2) on the directory itself, so that a full disk does not matter. Raises AgentboxError."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise AgentboxError(f"{folder} is locked by another agentbox", fix="try again") from None
                time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def emergency_stop(path: str) -> str:
    """Why nothing may start because of the emergency stop file, or "". What can't be told counts as a stop."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} cannot be looked at: {error.strerror}"
    return f"the emergency stop is on ({path})"


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]
