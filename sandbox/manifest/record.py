"""One record of a manifest: how it is made, what is in it, and how it is written as a line.

Every record: `v` (1), `ts` (UTC, RFC 3339, microseconds, Z), `mono` (seconds, CLOCK_MONOTONIC), `boot_id`
(or null), `host`, `run_id`, `task_id` (or null), `event`, `by` ({uid, pid, inside}: inside a box, yes, no
or null for could not tell), and `prev`, the digest of the line before (see `digest`), "" in the first
record, null where the record had to be written without the lock, with the reason in `unlocked`.

| event                | fields |
| -------------------- | ------ |
| run.created          | argv, cwd, backend, labels, parent_run, detached, on_exit, timeout (s), version,
|                      | own_dirs |
| task.intent          | argv, cwd, backend, launcher, detached; with a worktree: branch, worktree, repository,
|                      | base |
| task.started         | pid, start_ticks, box {backend, id, cgroup, cgroup_inode, parent_inode}, remote_id, branch,
|                      | worktree, started_at, harness, argv, launcher {pid, start_ticks}, detached,
|                      | allowance (s, where one was given) |
| task.exited          | code, signal, outcome (exited, signaled, killed, timeout, oom, stopped),
|                      | leftovers [...] |
| task.failed_to_start | why, code, nothing_made |
| control.set          | order (RUN, PAUSE, STOP), generation, task_id, reason |
| stop.rung            | rung, at, processes |
| stop.receipt         | reason, ordered_at, frozen_at, empty_at, processes [...], survivors [...],
|                      | proof (empty, alive, unknown), rungs, gone_in_grace (how many, of an abort) |
| steer.table          | the table of a redirect, whole |
| finding              | one finding of the reconciler |
| run.ended            | code, outcome |
| note                 | text; torn {offset, length, after} marks a line that a crash cut short |

Secrets are taken out of every `argv`, at any depth, and out of labels and free text (see redact.py);
ids, paths and branches are kept as they are, for they are acted on.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from sandbox.manifest.redact import REDACTED, redact, redact_text, secret_name

# hashlib loads OpenSSL: 3.5 MiB and 3 ms that a launcher has no use for.
try:
    from _blake2 import blake2b
except ImportError:  # pragma: no cover - a Python built without it
    from hashlib import blake2b

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EVENTS", "MAX_LINE", "digest", "encode", "hasher", "make", "redact", "whoami"]

EVENTS = (
    "run.created",
    "task.intent",
    "task.started",
    "task.exited",
    "task.failed_to_start",
    "control.set",
    "stop.rung",
    "stop.receipt",
    "steer.table",
    "finding",
    "run.ended",
    "note",
)

MAX_LINE = 8 * 1024 * 1024
"""Bytes, without the newline: what is longer is never written, and no reader takes it for a record."""

_OURS = frozenset({"v", "ts", "mono", "boot_id", "host", "prev", "unlocked"})
_ENVELOPE = (*sorted(_OURS), "run_id", "task_id", "event", "by")
_TEXT = frozenset({"labels", "reason", "why", "text", "what", "message", "cmdline", "evidence", "command"})


def make(
    run_id: str, event: str, *, task_id: str | None = None, by: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A record of `event`, now, without `prev`. ValueError for an event or field that is not for callers."""
    if event not in EVENTS:
        raise ValueError(f"no such event: {event}")
    if taken := _OURS.intersection(fields):
        raise ValueError(f"fields of the record itself: {', '.join(sorted(taken))}")
    now = time.time_ns()
    record: dict[str, Any] = {
        "v": 1,
        "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)) + f".{now // 1000 % 10**6:06d}Z",
        "mono": round(time.monotonic(), 6),
        "boot_id": _boot_id(),
        "host": os.uname().nodename,
        "run_id": run_id,
        "task_id": task_id,
        "event": event,
        "by": dict(by) if by is not None else whoami(),
    }
    for name, value in fields.items():
        record[name] = _without_secrets(name, value)
    return record


def whoami(inside: bool | None = None) -> dict[str, Any]:
    """This process as a record's `by`; `inside` a box: True, False, or None for could not tell."""
    return {"uid": os.getuid(), "pid": os.getpid(), "inside": inside}


def encode(record: Mapping[str, Any]) -> bytes:
    """The record as one line of ASCII with its newline, at most MAX_LINE long.

    Bytes that are no UTF-8 and came in as lone surrogates (PEP 383) come back the same from json.loads.
    What JSON has no form for (NaN, an object) becomes its text or null; a record that is too long has its
    long strings and lists cut, and says so by `cut: true`. Never raises for what is in it.
    """
    line = _dumps(record)
    for most in (65536, 1024, 32):
        if len(line) <= MAX_LINE:
            break
        line = _dumps({name: _cut(value, most) for name, value in record.items()} | {"cut": True})
    if len(line) > MAX_LINE:
        line = _dumps({name: record[name] for name in _ENVELOPE if name in record} | {"cut": True})
    return line + b"\n"


def hasher() -> blake2b:
    """A running digest: feed it with `update`, take `hexdigest`."""
    return blake2b(digest_size=32)


def digest(line: bytes) -> str:
    """The digest of a line without its newline: BLAKE2b of 256 bits in hex, as `b2sum -l 256` prints it."""
    return blake2b(line, digest_size=32).hexdigest()


def _boot_id() -> str | None:
    from sandbox.kernel.identity import boot_id

    return boot_id() or None


def _dumps(value: Any) -> bytes:
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=_plain)
    except (ValueError, TypeError, RecursionError):
        text = json.dumps(_tame(value, 40), separators=(",", ":"))
    return text.encode("ascii")


def _plain(value: Any) -> Any:
    """A value that JSON does not know, as one that it does."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


def _tame(value: Any, depth: int) -> Any:
    """A copy that json.dumps takes: finite numbers, text for keys, at most `depth` deep."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, int):
        return value if abs(value) < 2**64 else None
    if value is None or isinstance(value, str):
        return value
    if not depth:
        return None
    if isinstance(value, dict):
        return {str(name): _tame(inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tame(inner, depth - 1) for inner in value]
    return _tame(_plain(value), depth - 1)


def _cut(value: Any, most: int) -> Any:
    """A copy in which no string, list or object is longer than `most`."""
    if isinstance(value, str):
        return value if len(value) <= most else f"{value[:most]}[{len(value) - most} more]"
    if isinstance(value, dict):
        return {name: _cut(inner, most) for name, inner in list(value.items())[:most]}
    if isinstance(value, (list, tuple)):
        return [_cut(inner, most) for inner in value[:most]]
    return value


def _without_secrets(name: str, value: Any) -> Any:
    if name == "argv" and isinstance(value, (list, tuple)):
        return redact([_plain(arg) if not isinstance(arg, str) else arg for arg in value])
    if name in _TEXT:
        return _text_without_secrets(value)
    if isinstance(value, dict):
        return {key: _without_secrets(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (dict, list, tuple)):
        return [_without_secrets(name, inner) for inner in value]
    return value


def _text_without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {
            key: REDACTED if secret_name(str(key)) and inner else _text_without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_text_without_secrets(inner) for inner in value]
    return value
