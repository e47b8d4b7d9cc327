"""Beats: what an agent becomes by exec. usage: beats NAME [WORD]..."""

import sys

from tests.hostile.agents.common import beat

beat(sys.argv[2])
