"""Plain columns for a terminal or a pipe, and numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.errors import printable


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns two spaces apart; control characters of hostile text are shown, not sent."""
    lines = [header, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join(text) + "\n"


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def bytes_text(number: float | None) -> str:
    """`512K`, `1.5G`; `?` where it is not known."""
    if number is None:
        return "?"
    for unit in ("B", "K", "M", "G"):
        if number < 1024:
            return f"{number:.0f}{unit}" if unit in "BK" else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}T"


def seconds_text(seconds: float | None) -> str:
    """`12s`, `3m04s`, `5h12m`, `3d04h`."""
    if seconds is None:
        return "?"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
