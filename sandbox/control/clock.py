"""Wall-clock time as the records write it."""

from __future__ import annotations

import time


def now() -> str:
    """UTC, RFC 3339, microseconds."""
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"
