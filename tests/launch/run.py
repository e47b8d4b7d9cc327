"""`agentbox run --` of this tree, without what a virtual environment adds. usage: run.py -- COMMAND..."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sandbox.cli.main import main

sys.argv[1:1] = ["run", "--backend", "cgroup"]
main()
