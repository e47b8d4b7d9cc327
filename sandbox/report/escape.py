"""Text of an agent on its way into a page: it can neither leave its element nor change how its line is read."""

from __future__ import annotations

import html

from sandbox.errors import printable

LONGEST = 4000


def esc(text: str) -> str:
    """`text` for the content or a quoted attribute of an HTML element, at most LONGEST characters of it.

    Control characters, line ends but \\n, direction controls, invisible ones and lone surrogates come out as escapes,
    as in a terminal (errors.printable); source on directions: UAX #9.
    """
    cut = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return html.escape("\n".join(map(printable, cut.split("\n"))), quote=True)
