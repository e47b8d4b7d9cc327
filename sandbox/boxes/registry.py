"""Which backends there are, and which one a run gets."""

from __future__ import annotations

import os
from collections.abc import Iterable

from sandbox.boxes.base import Backend, Unavailable
from sandbox.boxes.cgroup import CgroupBackend
from sandbox.boxes.where import own_box
from sandbox.errors import AgentboxError

NAMES = ("cgroup", "systemd", "docker")


def backend(name: str, home: str) -> Backend:
    """The backend of that name. Raises AgentboxError for a name that is none."""
    if name == "cgroup":
        return CgroupBackend(home)
    if name == "systemd":
        from sandbox.boxes.systemd import SystemdBackend

        return SystemdBackend(home)
    if name == "docker":
        from sandbox.boxes.docker import DockerBackend

        return DockerBackend(home)
    raise AgentboxError(f"no backend {name!r}", fix=f"choose one of auto, {', '.join(NAMES)}", code=2)


def local_backends(home: str) -> list[Backend]:
    """Those whose boxes are found by looking at this host's cgroups: no engine need answer."""
    return [backend("cgroup", home), backend("systemd", home)]


def choose(name: str, home: str, image: str | None = None, joins: str | None = None) -> Backend:
    """The backend for a new run, or for a task of the run `joins`; `auto` takes the first that really works.

    Inside a box only that box's own kind of nesting holds: a scope or container started from inside would
    live beside the box, and the stop of the outer run would miss it. A task of the same run belongs there.
    Raises Unavailable.
    """
    own = own_box()
    if own and own.run_id != joins and name in ("auto", "systemd") and not image:
        if name == "systemd":
            outside = f"run {joins}" if joins else "a scope"
            raise Unavailable(
                f"this is inside of run {own.run_id}, and {outside} is not: a stop would miss it",
                fix="start it from outside" if joins else "use --backend cgroup",
            )
        return backend("cgroup", home)
    if name != "auto":
        return backend(name, home)
    if image:
        return backend("docker", home)
    return _first_that_works(("systemd", "cgroup"), home)


def _first_that_works(names: Iterable[str], home: str) -> Backend:
    reasons = []
    for name in names:
        if name == "systemd" and not os.path.isdir("/run/systemd/system"):  # sd_booted(3)
            reasons.append("systemd: not PID 1 here")
            continue
        candidate = backend(name, home)
        try:
            candidate.probe()
        except Unavailable as error:
            reasons.append(f"{name}: {error}")
            continue
        return candidate
    raise Unavailable(f"no backend works here ({'; '.join(reasons)})", fix="see `agentbox doctor`")
