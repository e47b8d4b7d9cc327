"""Telling a command that can't be started before anything is made for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sandbox.errors import NOT_EXECUTABLE, NOT_FOUND, AgentboxError
from sandbox.kernel.spawn import find_command
from sandbox.launch.spec import LaunchSpec


def require_command(spec: LaunchSpec, env: Mapping[bytes, bytes], folder: str | None = None) -> None:
    """Raises AgentboxError with 127 or 126 if exec would; a relative path is looked up from `folder`."""
    name = spec.argv[0]
    if folder is not None and b"/" in name:
        name = os.path.join(os.fsencode(folder), name)
    number = find_command(name, env)
    if number == 0:
        return
    if number in (2, 20):
        raise AgentboxError(f"command {spec.name} not found", fix="check its name and PATH", code=NOT_FOUND)
    raise AgentboxError(
        f"{spec.name} is not executable: {os.strerror(number)}",
        fix="chmod +x it, if it is a program",
        code=NOT_EXECUTABLE,
    )
