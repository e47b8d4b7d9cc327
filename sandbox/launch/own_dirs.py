"""Folders that one run has to itself (`run --own-dirs`), so that no job of it is handed to a daemon of somebody else's.

A daemon that is shared is found by its socket or registry in one of these. Sources: POSIX.1-2017, 8.3 (TMPDIR); XDG
Base Directory Specification (XDG_RUNTIME_DIR, mode 0700); the Gradle user manual (GRADLE_USER_HOME); unix(7), sun_path.
"""

from __future__ import annotations

import os

from sandbox.errors import AgentboxError, number_of
from sandbox.manifest.home import RunDir

FOLDERS = {"TMPDIR": "tmp", "XDG_RUNTIME_DIR": "run", "GRADLE_USER_HOME": "gradle"}
SOCKET_PATH_MAX = 107
"""Bytes, without the NUL that ends it."""
ROOM = 32
"""Of those, what is left to the names below a folder: `/pymp-xxxxxxxx/listener-xxxxxxxx` of Python is as long."""


def check(run: RunDir) -> None:
    """AgentboxError where a socket in one of the folders would have too long a path."""
    over = len(os.fsencode(f"{run.path}/tmp")) - (SOCKET_PATH_MAX - ROOM)
    if over > 0:
        raise AgentboxError(
            f"--own-dirs: {run.path} is {number_of(over, 'byte')} too long for the path of a socket in it",
            fix="choose a shorter --run-id or AGENTBOX_HOME",
        )


def make(run: RunDir) -> None:
    """Make them in a run that was just created. Raises OSError."""
    for name in FOLDERS.values():
        os.mkdir(f"{run.path}/{name}", 0o700)
        os.chmod(f"{run.path}/{name}", 0o700)  # whatever the umask is


def variables(run: RunDir) -> dict[bytes, bytes]:
    """What names the folders that this run has to itself; empty for a run without."""
    there = {variable: f"{run.path}/{name}" for variable, name in FOLDERS.items()}
    return {os.fsencode(name): os.fsencode(path) for name, path in there.items() if os.path.isdir(path)}
