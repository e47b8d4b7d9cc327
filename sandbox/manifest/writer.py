"""Appending to a manifest: whole lines, chained, in one order, and never at the price of a stop."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandbox.errors import AgentboxError
from sandbox.manifest.home import fsync_directory
from sandbox.manifest.lines import digest_at, last_line, open_regular
from sandbox.manifest.record import encode, make

if TYPE_CHECKING:
    from collections.abc import Mapping

_BUSY = (errno.EAGAIN, errno.EACCES)  # EACCES: flock(2) over NFS is emulated by fcntl(2), which says so
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)

_FIXES = {
    errno.ENOSPC: "free some space on its file system",
    errno.EDQUOT: "free some space: the quota is used up",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "its file system is read-only: remount it, or set AGENTBOX_HOME elsewhere",
    errno.EACCES: "look at the owner and mode of the file and its directory",
    errno.EPERM: "look at the owner, mode and attributes (lsattr) of the file",
    errno.ENOENT: "the run's directory is gone",
    errno.EIO: "look at the disk: dmesg tells more",
    errno.ELOOP: "a symbolic link stands in its place: move it away",
    errno.EISDIR: "a directory stands in its place: move it away",
    errno.EINVAL: "something that is no file stands in its place: move it away",
    errno.ENXIO: "something that is no file stands in its place: move it away",
}


class RecordError(AgentboxError):
    """A record could not be written; what it tells of has happened all the same. `errno`: why."""

    def __init__(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        fix = _FIXES.get(error.errno or 0, "look at the file and its directory")
        super().__init__(f"could not record in {path}: {reason}", fix=fix)
        self.errno = error.errno


class Writer:
    """Appends to the manifest at `path`, which is made (0600) by the first record.

    `by`: who writes, as `record.whoami` gives it; None asks anew at each record. Nothing is held open
    between records, so no child ever inherits the file or its lock.
    """

    def __init__(self, path: str, run_id: str, by: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.run_id = run_id
        self.by = by

    def append(
        self,
        event: str,
        *,
        task_id: str | None = None,
        sync: bool = False,
        lock_deadline: float = 1.0,
        **fields: Any,
    ) -> dict[str, Any]:
        """Write one record and return it as written; `sync`: it is on the disk when this returns.

        Waits for the lock `lock_deadline` seconds at most; without it the record is written all the same,
        with `prev` null and the reason in `unlocked`. RecordError if it could not be written whole.
        """
        record = make(self.run_id, event, task_id=task_id, by=self.by, **fields)
        try:
            fd = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            try:
                new = os.fstat(fd).st_size == 0
                if new:
                    with suppress(OSError):
                        os.fchmod(fd, 0o600)  # whatever the umask
                self._append(fd, record, lock_deadline)
                if sync:
                    _fsync(fd)
                    if new:
                        fsync_directory(os.path.dirname(self.path) or ".")
            finally:
                os.close(fd)
        except OSError as error:
            raise RecordError(self.path, error) from error
        return record

    def _append(self, fd: int, record: dict[str, Any], lock_deadline: float) -> None:
        reason = _lock(fd, lock_deadline)
        try:
            if reason:
                record["prev"], record["unlocked"] = None, reason
                # No note: what looks torn may be a line that another is writing now.
                _write(fd, (b"\n" if _whole_size(fd) is None else b"") + encode(record))
            else:
                size = _whole_size(fd)
                record["prev"] = _last_digest(fd, self._mend(fd) if size is None else size)
                _write(fd, encode(record))
        finally:
            if not reason:
                # Closing is not enough: a child forked by another thread may share the file description.
                with suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_UN)

    def _mend(self, fd: int) -> int:
        """Under the lock: end a torn last line and mark it with a note; the size of the file with that."""
        start, length = last_line(fd, os.fstat(fd).st_size)
        note = make(
            self.run_id,
            "note",
            by=self.by,
            text="the line before was cut short by a crash",
            torn={"offset": start, "length": length, "after": _last_digest(fd, start)},
        )
        note["prev"] = digest_at(fd, start, length)
        _write(fd, b"\n" + encode(note))
        return os.lseek(fd, 0, os.SEEK_CUR)


def _write(fd: int, data: bytes) -> None:
    """One write(2) of whole lines. A short one is an OSError, and its fragment is ended if it can be."""
    done = os.write(fd, data)
    if done < len(data):
        with suppress(OSError):
            os.write(fd, b"\n")
        raise OSError(errno.ENOSPC, f"{done} of {len(data)} bytes written, is the disk full?")
    start = os.lseek(fd, 0, os.SEEK_CUR) - done
    if start and not data.startswith(b"\n") and os.pread(fd, 1, start - 1) != b"\n":
        # A writer without the lock died in its line, and ours is glued to it.
        _write(fd, b"\n" + data)


def _lock(fd: int, deadline: float) -> str:
    """Take the lock on the open file within `deadline` seconds; "" or the reason why it isn't held."""
    end = time.monotonic() + deadline
    pause = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return ""
        except OSError as error:
            if error.errno not in _BUSY:
                return f"the lock could not be taken: {error.strerror}"
        left = end - time.monotonic()
        if left <= 0:
            return f"the lock was held for {deadline:g} s"
        time.sleep(min(pause, left))
        pause = min(pause * 2, 0.02)


def _whole_size(fd: int) -> int | None:
    """The size of the file, taken when it ended with a whole line; None if its last line is torn."""
    for _ in range(3):
        size = os.fstat(fd).st_size
        if not size or os.pread(fd, 1, size - 1) == b"\n":
            return size
        time.sleep(0.001)  # a writer without the lock may be in the middle of its line
    return None


def _last_digest(fd: int, size: int) -> str:
    """The digest of the last line within `size` bytes, which the next carries as `prev`; "" if none."""
    offset, length = last_line(fd, size)
    return digest_at(fd, offset, length) if length else ""


def _fsync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FSYNC:  # a file system that has no fsync (fsync(2))
            raise
