"""Parsing for the verbs whose start-up time counts (run, spawn, kill, abort, estop, reconcile): argparse alone.

Typer with its own imports takes longer than those verbs may take in all (see docs/performance.md).
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from sandbox.errors import USAGE, AgentboxError, ReaderGone


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are ours: one line, with the way out."""

    def __init__(self, verb: str, usage: str, about: str) -> None:
        super().__init__(
            prog=f"agentbox {verb}",
            usage=usage,
            description=about,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    @property
    def takes_words(self) -> bool:
        """Does it take words that are no options?"""
        return any(not action.option_strings for action in self._actions)

    def error(self, message: str) -> NoReturn:
        raise AgentboxError(message, fix=f"see `{self.prog} --help`", code=USAGE)


class Value(argparse.Action):
    """Stores what `convert` makes of the text; `convert` raises AgentboxError with its own words."""

    def __init__(self, convert: Any, **options: Any) -> None:
        super().__init__(**options)
        self.convert = convert

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, self.convert(values))


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """What stands before the first `--`, and what after; None where there is no `--`."""
    words = list(argv)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def output(text: str | bytes) -> None:
    """Write all of it to stdout. Raises ReaderGone, or AgentboxError where it can't be written.

    Characters that stdout's encoding lacks, and bytes of an argv that are none, come out as escapes.
    """
    raw = text if isinstance(text, bytes) else text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
    try:
        sys.stdout.flush()
        while raw:
            raw = raw[_write(raw) :]
    except BrokenPipeError:
        raise ReaderGone from None
    except OSError as error:
        raise AgentboxError(f"the output could not be written: {error.strerror}", fix="see where it goes") from None


def _write(raw: bytes) -> int:
    try:
        return os.write(1, raw)
    except BlockingIOError:  # whoever shares the pipe has made it non-blocking
        select.select([], [1], [])
        return 0
