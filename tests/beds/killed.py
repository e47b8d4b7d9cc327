"""A session that is killed in the middle; test_beds.py runs it and looks for what it left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support import agentbox


def test_kills_its_session(home: Path) -> None:
    subprocess.Popen(["sleep", f"904.{os.getppid()}"], start_new_session=True)
    agentbox("run", "-d", "--run-id", "abandoned", "--", "env", "-i", "sleep", f"905.{os.getppid()}", check=0)
    os.kill(os.getpid(), signal.SIGKILL)
