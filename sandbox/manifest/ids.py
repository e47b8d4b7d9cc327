"""Names of runs and tasks: what may be one, how one is made, how a person's short form finds one."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from sandbox.errors import NO_SUCH_RUN, USAGE, AgentboxError

if TYPE_CHECKING:
    from collections.abc import Iterable

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # 32 signs, none of them mistaken for another
_SHOWN = 10


def is_id(text: object) -> bool:
    """Does `text` have the form of a run or task id? Safe as a file name, unit name and label value."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_id(text: str, what: str) -> str:
    """`text` unchanged if it may be an id, else AgentboxError (USAGE); `what` names it, as in "run id"."""
    if is_id(text):
        return text
    raise AgentboxError(
        f"{what} {_shown(text)} is not allowed",
        fix="use 1 to 63 of A-Z a-z 0-9 . _ - with a letter or digit first",
        code=USAGE,
    )


def new_run_id() -> str:
    """An id such as r20260913-094012-x7f3: the second it was made (UTC) and 20 random bits."""
    suffix = "".join(_ALPHABET[byte & 31] for byte in os.urandom(4))
    return time.strftime("r%Y%m%d-%H%M%S-", time.gmtime()) + suffix


def select(prefix: str, known: Iterable[str]) -> str:
    """The one run that a person means: an exact id wins, else the only one that starts with `prefix`.

    AgentboxError: code USAGE for a text that can't begin an id and for an ambiguous prefix (its candidates
    are listed), NO_SUCH_RUN where nothing matches.
    """
    check_id(prefix, "run id")
    ids = sorted(set(known))
    if prefix in ids:
        return prefix
    found = [run_id for run_id in ids if run_id.startswith(prefix)]
    if not found:
        raise AgentboxError(f"no such run: {prefix}", fix="agentbox ps -a lists the runs there are", code=NO_SUCH_RUN)
    if len(found) > 1:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise AgentboxError(
            f"run id {prefix} is ambiguous: {', '.join(found[:_SHOWN])}{more}",
            fix="type more of it",
            code=USAGE,
        )
    return found[0]


def _shown(text: object) -> str:
    """`text` for an error line: escaped, and short."""
    escaped = repr(text)
    return escaped if len(escaped) <= 80 else f"{escaped[:76]}...{escaped[-1]}"
