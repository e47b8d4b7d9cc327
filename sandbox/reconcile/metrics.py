"""Metrics in Prometheus' text format, for node_exporter's textfile collector or any scraper of files.

Format: prometheus.io/docs/instrumenting/exposition_formats. The file is replaced atomically: a scrape sees the old
one or the new one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

from sandbox.errors import AgentboxError
from sandbox.reconcile.findings import GRAVITY, KINDS, Finding

SUCCESS = "agentbox_reconcile_last_success_timestamp_seconds"
STATES = (
    "starting", "running", "paused", "leftovers", "stopping", "kill_pending", "stopped", "exited", "lost",
    "not started", "unknown", "gone",
)  # fmt: skip


def write(path: str, text: str) -> None:
    """Replace the file. Raises AgentboxError where it can't be written."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.rename(temporary, path)
    except OSError as error:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise AgentboxError(f"metrics cannot be written to {path}: {error.strerror}", fix="see its directory") from None


def text(
    found: Iterable[Finding],
    states: Mapping[str, str],
    *,
    seconds: float,
    not_asked: int,
    not_inspectable: int,
    last_success: float | None,
) -> str:
    """`found`: all findings; `states`: one a run; `last_success`: seconds since the epoch, None = never."""
    counts, by_state = Counter((one.kind, one.severity) for one in found), Counter(states.values())
    lines = _head("agentbox_reconcile_findings", "Findings of the last look, by kind and severity.")
    for kind, severity in product(KINDS, GRAVITY):
        labels = f'{{kind="{kind}",severity="{severity}"}}'
        lines.append(f"agentbox_reconcile_findings{labels} {counts[kind, severity]}")
    lines += _head("agentbox_runs", "Runs of this state directory, by state.")
    lines += [f'agentbox_runs{{state="{state}"}} {by_state[state]}' for state in STATES]
    values = {
        "agentbox_reconcile_duration_seconds": ("How long the last look took.", f"{seconds:.3f}"),
        "agentbox_reconcile_not_asked": ("Observers without an answer.", str(not_asked)),
        "agentbox_reconcile_not_inspectable": ("Processes that could not be looked into.", str(not_inspectable)),
    }
    for name, (about, value) in values.items():
        lines += [*_head(name, about), f"{name} {value}"]
    if last_success is not None:
        lines += [*_head(SUCCESS, "When a look last reached everything."), f"{SUCCESS} {last_success:.3f}"]
    return "\n".join(lines) + "\n"


def last_success(path: str) -> float | None:
    """What an earlier file says of the last whole look, or None."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = re.search(rf"^{SUCCESS} ([\d.e+]+)$", file.read(1 << 20), re.MULTILINE)
        return float(found[1]) if found else None
    except (OSError, ValueError):
        return None


def _head(name: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
