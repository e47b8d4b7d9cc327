"""A scene whose boxes are containers: they see the machine's own programs, read-only, and the folder of the test."""

from __future__ import annotations

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
    """Where the machine's programs are, and those of the interpreter. /sbin stays the engine's, for its init."""
    real = str(Path(sys.executable).resolve().parent.parent)
    found = dict.fromkeys(("/usr", "/bin", "/lib", "/lib64", sys.prefix, sys.base_prefix, real))
    there = [path for path in found if Path(path).is_dir()]
    return [path for path in there if not any(path.startswith(f"{other}/") for other in there)]
