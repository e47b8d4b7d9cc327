"""Option values as people write them: durations, sizes, labels, environment."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from sandbox.errors import USAGE, AgentboxError
from sandbox.launch.output import SMALLEST

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([bkmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_LONGEST = 100 * 365 * 86400.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def duration(text: str) -> float:
    """`90`, `90s`, `2m30s`, `2h` as seconds. Raises AgentboxError."""
    found = _DURATION.fullmatch(text)
    if not text or not found:
        raise AgentboxError(f"no duration: {text!r}", fix="write it like 90s, 5m or 2h", code=USAGE)
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total > _LONGEST:
        raise AgentboxError(f"too long a duration: {text[:40]!r}", fix="give at most 100 years", code=USAGE)
    return total


def size(text: str) -> int:
    """`512m`, `2g`, `1048576` as bytes, in powers of 1024 as docker and systemd take them."""
    found = _SIZE.fullmatch(text)
    size = float(found[1]) * 1024 ** "bkmgt".index((found[2] or "b").lower()) if found else 0.0
    if not 1 <= size < 2**63:
        raise AgentboxError(f"no size: {text!r}", fix="write it like 512m or 2g", code=USAGE)
    return int(size)


def bound(text: str) -> int:
    """A size that holds a log, or 0 for no bound."""
    found = 0 if text == "0" else size(text)
    if 0 < found < SMALLEST:
        raise AgentboxError(f"too small a bound: {text!r}", fix=f"give at least {SMALLEST >> 10}k, or 0", code=USAGE)
    return found


def count(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or len(text) > 10 or not 0 < int(text) < 2**31:
        raise AgentboxError(f"no count: {text!r}", fix="give a whole number above 0", code=USAGE)
    return int(text)


def cores(text: str) -> float:
    """Processors, such as `1.5`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 100_000:
        raise AgentboxError(f"no number of processors: {text!r}", fix="write it like 1.5", code=USAGE)
    return value


def labels(pairs: Sequence[str]) -> dict[str, str]:
    """`K=V` each; the last of a key wins."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise AgentboxError(f"no label: {pair!r}", fix="write it like --label project=web", code=USAGE)
        found[key] = value
    return found


def environment(pairs: Sequence[str]) -> dict[bytes, bytes]:
    """`K=V` sets a variable, `K` alone passes the caller's on (nothing if it has none), as docker does."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not _NAME.fullmatch(key):
            raise AgentboxError(f"no variable name: {key!r}", fix="write it like --env NAME=value", code=USAGE)
        if equals or key in os.environ:
            found[os.fsencode(key)] = os.fsencode(value if equals else os.environ[key])
    return found
