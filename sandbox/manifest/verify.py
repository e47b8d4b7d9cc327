"""Is a manifest whole? Told by its chain of digests, with what the chain can't tell said as well."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.errors import AgentboxError
from sandbox.manifest.lines import open_regular, scan
from sandbox.manifest.reader import parse

if TYPE_CHECKING:
    from sandbox.manifest.lines import Line

_REMEMBERED = 256  # a hostile file of torn lines must not make this quadratic


@dataclass(frozen=True)
class Finding:
    """A line of a manifest, by offset and length in bytes, and what there is to say of it."""

    offset: int
    length: int
    what: str


@dataclass
class Verdict:
    """`whole`: nothing that the chain can tell was changed. `problems` tell why not.

    `torn`: lines that a crash cut short, and `unlocked`: records written without the lock; neither makes it
    broken. `cannot_tell`: what no chain can tell, in words. `head`: the digest of the last line, to be kept
    outside and given to the next `verify`. `records`: how many were read.
    """

    whole: bool = True
    problems: list[Finding] = field(default_factory=list)
    unlocked: list[Finding] = field(default_factory=list)
    torn: list[Finding] = field(default_factory=list)
    cannot_tell: list[str] = field(default_factory=list)
    head: str = ""
    records: int = 0
    missing: bool = False


def verify(path: str, head: str | None = None, run_id: str | None = None) -> Verdict:
    """Check the chain of the manifest at `path`, and that it still holds the line whose digest is `head`.

    `run_id`: whose it is; None takes the run of the first record. AgentboxError if it can't be read.
    """
    walk = _Walk(run_id, head)
    try:
        fd = open_regular(path, os.O_RDONLY)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise AgentboxError(f"can't read {path}: {error.strerror}", fix="look at the file") from error
        walk.verdict.missing = True
        walk.problem(None, "there is no manifest")
        return walk.end()
    try:
        for line in scan(fd, digests=True):
            walk.line(line)
    except OSError as error:
        raise AgentboxError(f"can't read {path}: {error.strerror}", fix="look at the file") from error
    finally:
        os.close(fd)
    return walk.end()


class _Walk:
    """The state of one pass.

    `expected`: the digests that the next record may carry: that of the line before, and of those before it
    as long as the lines in between were written by somebody who did not hold the lock.
    """

    def __init__(self, run_id: str | None, head: str | None) -> None:
        self.verdict = Verdict()
        self.run_id = run_id
        self.wanted = head or None
        self.expected = {""}
        self.before_torn: dict[str, set[str]] = {}
        self.last_torn: Line | None = None
        self.first_event: Any = None

    def line(self, line: Line) -> None:
        self.verdict.head = line.digest
        record, reason = parse(line)
        if record is None:
            self._torn(line, reason)
        else:
            self._record(line, record)
        if line.digest == self.wanted:
            self.wanted = ""

    def problem(self, line: Line | None, what: str) -> None:
        offset, length = (line.offset, line.length) if line else (0, 0)
        self.verdict.problems.append(Finding(offset, length, what))

    def _torn(self, line: Line, reason: str) -> None:
        self.verdict.torn.append(Finding(line.offset, line.length, reason))
        if len(self.expected) < _REMEMBERED:
            self.before_torn[line.digest] = set(self.expected)
        self.expected.add(line.digest)
        self.last_torn = line

    def _record(self, line: Line, record: dict[str, Any]) -> None:
        if not self.verdict.records:
            self.first_event = record.get("event")
            self.run_id = self.run_id or record.get("run_id")
        self.verdict.records += 1
        if record.get("run_id") != self.run_id:
            self.problem(line, "a record of another run")
        if not line.ended:
            self.verdict.torn.append(Finding(line.offset, line.length, "whole, but without its newline"))
        prev, reason = record.get("prev"), record.get("unlocked")
        if prev is None and isinstance(reason, str):
            self.verdict.unlocked.append(Finding(line.offset, line.length, reason))
            self.expected.add(line.digest)
            return
        if not isinstance(prev, str):
            self.problem(line, "it carries no digest of the line before, and no reason why")
        elif prev not in self.expected:
            self.problem(line, "it does not follow the line before: one was changed, removed or put in")
        self._across_torn(line, record)
        self.expected = {line.digest}

    def _across_torn(self, line: Line, record: dict[str, Any]) -> None:
        """The mender's note ties the line before a torn one to the chain; without it that can't be told."""
        torn = record.get("torn")
        note = torn if record.get("event") == "note" and isinstance(torn, dict) else {}
        prev, after = record.get("prev"), note.get("after")
        # By its digest and not by its offset, which every line removed before it shifts.
        if isinstance(prev, str) and prev in self.before_torn and isinstance(after, str):
            if after not in self.before_torn[prev]:
                self.problem(line, "the line before the torn one was changed, removed or put in")
        elif self.last_torn is not None and prev == self.last_torn.digest:
            self.verdict.cannot_tell.append(
                f"whether the line before the torn one at byte {self.last_torn.offset} was changed"
            )
        self.last_torn = None
        self.before_torn.clear()

    def end(self) -> Verdict:
        """The verdict, with what this chain can't tell."""
        verdict = self.verdict
        if self.wanted:
            self.problem(None, f"the line with the digest {self.wanted[:80]} is gone: changed or removed")
        anchored = self.wanted == ""
        since = " after the given head" if anchored else ""
        verdict.cannot_tell.append(
            f"whether lines at the end{since} were removed, or the last one changed"
            + ("" if anchored else ", or the whole file written anew: keep the head elsewhere to tell")
        )
        if verdict.unlocked:
            verdict.cannot_tell.append("whether records without the lock were put in or removed later")
        if verdict.records and self.first_event != "run.created":
            verdict.cannot_tell.append("what stood before the first record, which is not run.created")
        verdict.whole = not verdict.problems
        return verdict
