"""The score as one self-contained page: no script, nothing from outside, light and dark."""

from __future__ import annotations

from html import escape

from sandbox.drill.score import Row, Score
from sandbox.errors import number_of, printable

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #5b6570; --paper: #fff; --line: #d9dee3;
  --pass: #1a7f37; --investigate: #9a6700; --fail: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ae; --paper: #14171a; --line: #333a41;
  --pass: #4cc26a; --investigate: #e0b341; --fail: #ff7b72; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; font: 16px/1.45 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; }
p { color: var(--soft); margin: .2rem 0 1.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem .45rem 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; font-size: .85rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.detail { overflow-wrap: anywhere; color: var(--soft); font-size: .9rem; min-width: 12rem; }
.pass, .investigate, .fail { font-weight: 600; white-space: nowrap; }
.pass { color: var(--pass); } .investigate { color: var(--investigate); } .fail { color: var(--fail); }
"""
_SIGN = {"pass": "✓", "investigate": "?", "fail": "✗"}


def page(score: Score) -> str:
    """The whole HTML document."""
    word = ("pass", "every row passes") if score.passed else ("fail", "not every row passes")
    rows = "\n".join(map(_row, score.rows))
    acts = "\n".join(f'<tr><td class="number">{at:.2f} s<td class="detail">{_text(what)}' for at, what in score.acts)
    flaw = f", sabotage {_text(score.sabotage)}" if score.sabotage else ""
    left = "".join(f'<p class="fail">not undone: {_text(line)}</p>' for line in score.problems)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Drill {_text(score.run_id)}</title><style>{_STYLE}</style></head><body>
<h1>Drill {_text(score.run_id)}: <span class="{word[0]}">{_SIGN[word[0]]} {word[1]}</span></h1>
<p>{number_of(score.workers, "worker")}, backend {_text(score.backend)}{flaw}, {score.seconds:.1f} s</p>
{left}<div class="wide"><table>
<tr><th>Score<th>What<th class="number">Measured<th class="number">Pass<th class="number">Investigate<th>Detail
{rows}
</table>
<table>
<tr><th class="number">At<th>What was done
{acts}
</table></div></body></html>
"""


def _row(row: Row) -> str:
    limits = "".join(f'<td class="number">≤ {limit:g}' for limit in (row.passes, row.investigate))
    score = f'<td class="{row.verdict}">{_SIGN[row.verdict]} {row.verdict}'
    return (
        f'<tr>{score}<td>{_text(row.title)}<td class="number">{row.shown}{limits}<td class="detail">{_text(row.detail)}'
    )


def _text(text: str) -> str:
    return escape(printable(text))
