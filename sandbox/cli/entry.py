"""Where the command `agentbox` begins: the gate and the tick, which run thousands of times, import nothing else."""

from __future__ import annotations

import os
import sys


def main() -> None:
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb in ("gate", "tick") and not {"-h", "--help"} & set(sys.argv[2:]):
        from sandbox.harness import gate

        sys.exit((gate.tick if verb == "tick" else gate.gate)(sys.argv[2:], dict(os.environ)))
    from sandbox.cli.main import main as whole

    whole()
