"""The drill's containers: an empty image of its own, into which this host's programs are mounted read-only."""

from __future__ import annotations

import io
import os
import tarfile

from sandbox.errors import USAGE, AgentboxError

PROGRAMS = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32")
"""Where a shell, git and their libraries are (hier(7)); nothing of /etc. The engine's init has its place in /sbin."""
IMPORT_SECONDS = 60.0


def require_engine() -> None:
    """Raises AgentboxError where there is no engine, or where it does not see this host's files."""
    from sandbox.boxes.docker_engine import Engine

    if not Engine().facts().local:
        raise AgentboxError("the docker engine is not on this host", fix="drill on its host", code=USAGE)


def make_image(name: str) -> None:
    """Make the image. Raises AgentboxError."""
    from sandbox.boxes.docker_engine import Engine

    engine = Engine()
    engine.bounded(IMPORT_SECONDS, lambda: engine.api.import_image_from_data(_empty_root(), repository=name))


def _empty_root() -> bytes:
    """A tar with the directories to mount at, and /tmp."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for path in (*PROGRAMS, "/tmp"):
            info = tarfile.TarInfo(path.lstrip("/"))
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if path == "/tmp" else 0o755
            tar.addfile(info)
    return file.getvalue()


def mounts(folder: str) -> list[str]:
    """The options that mount the host's programs, and the drill's folder."""
    texts = [f"type=bind,source={path},target={path},readonly" for path in PROGRAMS if os.path.isdir(path)]
    texts.append(f"type=bind,source={folder},target={folder}")
    return [word for text in texts for word in ("--mount", text)]


def remove(home: str, run_id: str, image: str) -> list[str]:
    """Remove the run's containers, which have ended, and the image. Returns what could not be, a line each."""
    from sandbox.boxes.docker_engine import Engine, NotThere

    problems = []
    try:
        engine = Engine()
        for row in engine.ours(home, run_id):
            engine.bounded(IMPORT_SECONDS, lambda row=row: engine.api.remove_container(row["Id"], v=True))  # type: ignore[misc]
        engine.bounded(IMPORT_SECONDS, lambda: engine.api.remove_image(image))
    except NotThere:
        pass
    except AgentboxError as error:
        problems.append(f"containers of {run_id}: {error}")
    return problems
