"""Reading a manifest: whatever stands in it, the records that are good come out and the rest is counted."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sandbox.errors import AgentboxError
from sandbox.manifest.lines import open_regular, scan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandbox.manifest.lines import Line

_KEPT = 1000


@dataclass(frozen=True)
class BadRecord:
    """A line that is no record of this run: where it is (bytes), and why."""

    offset: int
    length: int
    reason: str


class Reading:
    """One pass over a manifest, lazily: iterate it, then look at the rest.

    `bad`: the lines that were skipped, the first thousand of them; `bad_count`: all of them. `missing`:
    there is no such file. `offset`: where the next `tail` goes on. `shrunk`: the file is shorter than the
    offset to go on from, so it was cut or replaced. Iterating again reads again.
    """

    def __init__(self, path: str, run_id: str | None, start: int, follows: bool) -> None:
        self.path = path
        self.run_id = run_id
        self.offset = start
        self.missing = False
        self.shrunk = False
        self.bad: list[BadRecord] = []
        self.bad_count = 0
        self._start = start
        self._follows = follows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.bad, self.bad_count = [], 0
        self.missing = self.shrunk = False
        try:
            fd = open_regular(self.path, os.O_RDONLY)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                raise _unreadable(self.path, error) from error
            self.missing = True
            return
        try:
            self.shrunk = os.fstat(fd).st_size < self._start
            yield from self._records(fd)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        finally:
            os.close(fd)

    def _records(self, fd: int) -> Iterator[dict[str, Any]]:
        run_id = self.run_id
        self.offset = self._start
        for line in scan(fd, self._start):
            if self._follows and not line.ended:
                return
            self.offset = line.offset + line.length + line.ended
            record, reason = parse(line)
            if record is not None and run_id is None and isinstance(record.get("run_id"), str):
                run_id = record["run_id"]
            if record is not None and record.get("run_id") != run_id:
                reason = "a record of another run" if "run_id" in record else "a record without run_id"
            if reason:
                self.bad_count += 1
                if len(self.bad) < _KEPT:
                    self.bad.append(BadRecord(line.offset, line.length, reason))
            elif record is not None:
                yield record


def read(path: str, run_id: str | None = None) -> Reading:
    """The records of the manifest at `path`, in the order of the file.

    Of `run_id`, or where that is None of the run that the first good record names. Never raises for what is
    in the file; AgentboxError if it can't be read at all, when it is iterated.
    """
    return Reading(path, run_id, 0, follows=False)


def tail(path: str, offset: int, run_id: str | None = None) -> Reading:
    """The records that came after `offset`, from the reading before; a line still being written waits."""
    return Reading(path, run_id, offset, follows=True)


def parse(line: Line) -> tuple[dict[str, Any] | None, str]:
    """The object on a line, or None and the reason why it is no record."""
    if line.data is None:
        return None, "longer than 8 MiB"
    try:
        value = _DECODER.decode(line.data.decode("utf-8"))
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except RecursionError:
        reason = "nested too deep"
    except ValueError as error:
        reason = f"not JSON: {error}"
    else:
        if isinstance(value, dict):
            return value, ""
        reason = "not an object"
    return None, reason if line.ended else f"cut short: {reason}"


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        _no_number(text)
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:20]} is no JSON number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)


def _unreadable(path: str, error: OSError) -> AgentboxError:
    fix = "look at its owner and mode" if error.errno in (errno.EACCES, errno.EPERM) else "look at the file"
    return AgentboxError(f"can't read {path}: {error.strerror or error}", fix=fix)
