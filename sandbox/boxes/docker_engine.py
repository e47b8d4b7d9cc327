"""Asking a docker engine (or Podman's socket), with a time-out on every question and two kinds of no.

`Rejected`: the engine answered and refused. `Unavailable`: it could not be asked, which says nothing about what
exists. Source: Docker Engine API v1.41, /containers and /info. docker-py is imported here, on first use.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sandbox.boxes.base import Unavailable
from sandbox.errors import AGENTBOX_FAILED, AgentboxError

T = TypeVar("T")

ASK_SECONDS = 5.0
"""For a question that the engine answers from memory."""
ACT_SECONDS = 120.0
"""For work: a create copies the image with some storage drivers."""

RUN, TASK, HOME, HOST, CGROUP = (f"agentbox.{name}" for name in ("run", "task", "home", "host", "cgroup"))
"""Container labels. CGROUP: the task's directory in the cgroup2 mount of the host that asked."""

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_NEVER = "0001-01-01T00:00:00"


class Rejected(AgentboxError):
    """The engine's refusal; `status` is the HTTP status, `said` its own words."""

    def __init__(self, what: str, status: int, said: str, *, fix: str = "", code: int | None = AGENTBOX_FAILED) -> None:
        super().__init__(what, fix=fix, code=code)
        self.status = status
        self.said = said


class NotThere(Rejected):
    """HTTP 404: no such container (or image)."""


@dataclass(frozen=True)
class Facts:
    """What matters of GET /info. `local`: its containers may live in this kernel's cgroup v2 hierarchy.

    `driver`: "cgroupfs" or "systemd". `limits`: the names of Limits that the engine can apply.
    """

    host: str
    local: bool
    driver: str
    rootless: bool
    limits: tuple[str, ...]
    podman: bool = False


@dataclass(frozen=True)
class Container:
    """What GET /containers/ID/json says of one of ours. `policy`: restart policy; `pid`: on the engine's host."""

    id: str
    name: str
    run_id: str
    task_id: str
    status: str
    running: bool
    paused: bool
    restarting: bool
    never_started: bool
    exit_code: int
    oom_killed: bool
    error: str
    pid: int
    policy: str
    cgroup: str

    @property
    def down(self) -> bool:
        """Nothing of it runs and nothing is on its way."""
        return not (self.running or self.paused or self.restarting) and self.status not in ("removing", "stopping")

    @property
    def ended(self) -> bool:
        """It ran, and does no more."""
        return self.down and not self.never_started

    @property
    def stays_down(self) -> bool:
        """The engine has no reason to start it again."""
        return self.policy in ("", "no")


def container(answer: Mapping[str, Any]) -> Container:
    """Read an inspect answer; fields that an engine leaves out count as their neutral value."""
    state: Mapping[str, Any] = answer.get("State") or {}
    labels = (answer.get("Config") or {}).get("Labels") or {}
    policy = (answer.get("HostConfig") or {}).get("RestartPolicy") or {}
    started = str(state.get("StartedAt") or _NEVER)
    return Container(
        id=str(answer.get("Id", "")),
        name=str(answer.get("Name", "")).lstrip("/"),
        run_id=labels.get(RUN, ""),
        task_id=labels.get(TASK, ""),
        status=str(state.get("Status", "")),
        running=bool(state.get("Running")),
        paused=bool(state.get("Paused")),
        restarting=bool(state.get("Restarting")),
        never_started=started.startswith("0001-"),
        exit_code=int(state.get("ExitCode") or 0),
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        pid=int(state.get("Pid") or 0),
        policy=str(policy.get("Name") or "no"),
        cgroup=labels.get(CGROUP, ""),
    )


class Engine:
    """One engine, as DOCKER_HOST, the docker context or the default socket names it. Raises Unavailable."""

    def __init__(self, seconds: float = ASK_SECONDS) -> None:
        self.address = address()
        self.api: Any = self.bounded(seconds, lambda: _connect(self.address, seconds))
        weakref.finalize(self, self.api.close)

    @property
    def socket(self) -> str | None:
        """The path of its unix socket, or None where it is reached otherwise."""
        return self.address["base_url"].removeprefix("unix://") if self._unix() else None

    def _unix(self) -> bool:
        return str(self.address["base_url"]).startswith("unix://")

    def bounded(self, seconds: float, act: Callable[[], T]) -> T:
        """Do one call. Raises NotThere, Rejected or Unavailable, nothing else of docker-py's."""
        import docker.errors
        import requests

        try:
            self._knock(seconds)
            if hasattr(self, "api"):
                self.api.timeout = max(0.05, seconds)
            return act()
        except docker.errors.APIError as error:
            raise _rejected(error) from None
        except (requests.RequestException, docker.errors.DockerException, OSError, ValueError) as error:
            if hasattr(self, "api"):
                self.api.close()  # of a connection that failed nothing is kept for the next question
            raise self._unanswered(error, seconds) from None

    def _knock(self, seconds: float) -> None:
        """See that the socket takes a connection: docker-py leaves one open that was refused. Raises OSError."""
        if self.socket is not None:
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(max(0.05, seconds))
                one.connect(self.socket)

    def _unanswered(self, error: Exception, seconds: float) -> Unavailable:
        where = str(self.address["base_url"])
        cause = _errno(error)
        if cause in (errno.EACCES, errno.EPERM):
            return Unavailable(f"no permission on {where}", fix="join the group that owns the socket, or use sudo")
        if cause in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTSOCK):
            return Unavailable(f"no docker engine at {where}", fix="start it, or set DOCKER_HOST")
        if "timed out" in str(error).lower():
            return Unavailable(f"the engine at {where} has not answered within {seconds:g} s", fix="see its log")
        return Unavailable(f"the engine at {where} could not be asked: {error}", fix="see its log")

    def facts(self, seconds: float = ASK_SECONDS) -> Facts:
        info = self.bounded(seconds, lambda: self.api.info())
        rootless = any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
        names = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpus": "CpuCfsQuota"}
        return Facts(
            host=str(info.get("Name", "")),
            local=self._unix() and not rootless and _same_kernel(info),
            driver=str(info.get("CgroupDriver", "")),
            rootless=rootless,
            limits=tuple(name for name, key in names.items() if info.get(key) or info.get(key.replace("Cfs", "CFS"))),
            podman="podman" in str(info.get("InitBinary", "")).lower() or "buildahVersion" in info,
        )

    def check_image(self, image: str, seconds: float = ASK_SECONDS) -> None:
        """Raises NotThere (an AgentboxError with exit code 125) where the engine has no such image."""
        try:
            self.bounded(seconds, lambda: self.api.inspect_image(image))
        except NotThere as error:
            raise NotThere(
                f"the engine has no image {image}", 404, error.said, fix=f"docker pull {image}, or build it first"
            ) from None

    def ours(self, home: str, run_id: str | None = None, seconds: float = ASK_SECONDS) -> list[Mapping[str, Any]]:
        """The containers (running or not) of this home, or of one run of it, as GET /containers/json lists them.

        The engine is asked for the label's presence only and the values are compared here: engines differ in
        how they match them. On a shared remote engine another host's runs may carry the same home and id.
        """
        filters = {"label": [RUN]}
        listed = self.bounded(seconds, lambda: self.api.containers(all=True, filters=filters))
        wanted = {HOME: home} | ({} if run_id is None else {RUN: run_id})
        if not self._unix():
            wanted[HOST] = os.uname().nodename
        rows = []
        for row in listed:
            labels = row.get("Labels") or {}
            if RUN in labels and all(labels.get(key) == value for key, value in wanted.items()):
                rows.append(row)
        return rows

    def inspect(self, name: str, seconds: float = ASK_SECONDS) -> Container:
        """Raises NotThere."""
        return container(self.bounded(seconds, lambda: self.api.inspect_container(name)))


def address() -> dict[str, Any]:
    """Where the engine is: `base_url` and, where configured, `tls`. As the docker command finds it."""
    try:
        from docker.context import ContextAPI
        from docker.utils import kwargs_from_env
    except ImportError:
        raise Unavailable("docker-py is missing", fix="pip install 'agentbox-launcher[docker]'") from None
    try:
        found = kwargs_from_env()
        if not found.get("base_url"):
            context: dict[str, Any] = getattr(ContextAPI, "kwargs_from_context", dict)()
            found = {**context, **found}
    except Exception as error:
        raise Unavailable(f"the docker configuration cannot be read: {error}", fix="set DOCKER_HOST") from None
    url = found.get("base_url") or _DEFAULT_HOST
    return {**found, "base_url": url.replace("http+unix://", "unix://")}


def _same_kernel(info: Mapping[str, Any]) -> bool:
    """Does the engine run on this kernel? A unix socket alone says little: it may lead into a VM, or over ssh.

    A yes that is wrong gives nothing away: a box's cgroup counts only as far as this kernel shows it alive.
    """
    own = os.uname()
    there = info.get("Name"), info.get("KernelVersion"), str(info.get("CgroupVersion", "1"))
    return there == (own.nodename, own.release, "2")


def _connect(where: Mapping[str, Any], seconds: float) -> Any:
    """A client that speaks the engine's own version. It is asked by a first one, whose connection can be closed."""
    from docker import APIClient
    from docker.constants import MINIMUM_DOCKER_API_VERSION

    first = APIClient(**where, version=MINIMUM_DOCKER_API_VERSION, timeout=seconds)
    try:
        version = first.version(api_version=False)["ApiVersion"]
    except KeyError:
        raise ValueError("what answers there is no docker engine") from None
    finally:
        first.close()
    return APIClient(**where, version=version, timeout=seconds)


def _rejected(error: Any) -> Rejected:
    said = str(getattr(error, "explanation", "") or error)
    status = int(getattr(error, "status_code", None) or 0)
    kind = NotThere if status == 404 else Rejected
    return kind(f"the docker engine refused: {said}", status, said)


def _errno(error: BaseException) -> int | None:
    """The first errno in an exception's arguments, reasons and causes, however deep docker-py wrapped it."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        one = waiting.pop(0)
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and isinstance(one.errno, int):
            return one.errno
        waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
    return None


def left(deadline: float, at_most: float) -> float:
    """Seconds until `deadline` (monotonic), at least a little, so that a late call still gets its answer."""
    return min(at_most, max(0.2, deadline - time.monotonic()))
