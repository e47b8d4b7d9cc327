"""All of its run's directory removed."""

import shutil

from tests.hostile.agents.common import main_beats, run_dir

shutil.rmtree(run_dir())
main_beats()
