"""A scene whose boxes are containers: they see the machine's own programs, read-only, and the folder of the test."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from sandbox.boxes.base import BoxSpec, Limits
from sandbox.boxes.docker import DockerBackend
from tests.beds.dockerd import IMAGE
from tests.boxes.scene import Scene


class ContainerScene(Scene):
    """The working folder of a step `cwd` counts only outside, so the test's folder is the container's, too."""

    def spec(self, task: str = "main", run_id: str = "", **more: Limits) -> BoxSpec:
        spec = super().spec(task, run_id, **more)
        places = [str(self.home.parent), *_programs()]
        mounts = [f"{place}:{place}{'' if place == places[0] else ':ro'}" for place in places]
        options = {"image": IMAGE, "mounts": mounts, "mount_cwd": False, "workdir": places[0], "network": "none"}
        return replace(spec, container={**options, "env": ["PATH"]})

    def close(self) -> None:
        super().close()
        assert isinstance(self.backend, DockerBackend)
        for run_id in self.runs:
            for container in self.backend._containers.engine.ours(str(self.home), run_id):
                self.backend._containers.engine.api.remove_container(container["Id"], force=True)


def _programs() -> list[str]:
    """Where the machine's programs are, and the interpreter's own folder (merged /usr: links are followed)."""
    found = [path for path in ("/usr", "/bin", "/lib", "/lib64", "/sbin", sys.prefix, sys.base_prefix)]
    outer = [path for path in dict.fromkeys(found) if Path(path).is_dir()]
    return [path for path in outer if not any(path.startswith(f"{other}/") for other in outer)] + _links()


def _links() -> list[str]:
    """The place that the interpreter's link leads to, where it is elsewhere."""
    real = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    return [] if real in (sys.prefix, sys.base_prefix) else [real]
