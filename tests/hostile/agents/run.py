"""Starts one of the agents beside this file: `run.py NAME [ARGUMENT]...`, in any directory, with any environment."""

import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[3])
runpy.run_module(f"tests.hostile.agents.{sys.argv[1]}", run_name="agent")
