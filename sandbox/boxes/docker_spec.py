"""From what a person asked for to the body of POST /containers/create (Docker Engine API v1.41).

Everything that loosens the box is off unless asked for: capabilities, new privileges, the engine's own socket.
There is no key for the host's pid namespace: a container in it can't be stopped whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandbox.boxes.base import BoxSpec, Command
from sandbox.boxes.docker_engine import CGROUP, HOME, HOST, RUN, TASK, Facts
from sandbox.errors import AgentboxError

KEYS = frozenset(
    {
        "image",  # a name or id that the engine has
        "mounts",  # texts as --mount takes them
        "network",  # none, bridge, host, or a network's name
        "read_only",  # bool: the root file system
        "caps",  # names of capabilities to keep
        "env",  # names of variables to pass
        "user",  # uid:gid, instead of the caller's own
        "tty",  # bool; None: if stdin, stdout and stderr are terminals
        "interactive",  # bool; None: unless stdin is closed
        "workdir",  # path in the container, instead of the working folder
        "cwd",  # the working folder, instead of the launcher's
        "mount_cwd",  # bool, default true: mount the working folder at the same path
        "docker_sock",  # bool: hand the engine's own socket in
    }
)
"""The keys of BoxSpec.container."""

_RUN_NAMES = (b"RUN_ID", b"TASK_ID", b"AGENTBOX_RUN_ID", b"AGENTBOX_TASK_ID", b"AGENTBOX_CONTROL", b"AGENTBOX_BEAT")
_BIND = {"src": "source", "dst": "target", "destination": "target", "ro": "readonly"}


@dataclass(frozen=True)
class Stdio:
    """How the command's stdio is wired: `tty`, its `size` (rows, columns), and whether stdin is open."""

    tty: bool = False
    stdin: bool = False
    size: tuple[int, int] | None = None


def container_name(spec: BoxSpec) -> str:
    """One for each task, readable, and apart from another home's."""
    digest = hashlib.blake2b(spec.home.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return f"agentbox-{spec.run_id}-{spec.task_id}-{digest}"


def check(spec: BoxSpec) -> str:
    """The image. Raises AgentboxError for what is missing or unknown."""
    if unknown := set(spec.container) - KEYS:
        raise AgentboxError(
            f"no container option {', '.join(sorted(unknown))}", fix=f"known: {', '.join(sorted(KEYS))}"
        )
    image = str(spec.container.get("image") or "")
    if not image:
        raise AgentboxError("the docker backend needs an image", fix="add --image IMAGE")
    return image


def create_body(
    spec: BoxSpec,
    command: Command,
    facts: Facts,
    stdio: Stdio,
    *,
    cgroup: str | None,
    parent: str | None,
    socket: str | None,
) -> dict[str, Any]:
    """`cgroup`: the task's directory for the label; `parent`: what the engine calls it; `socket`: the engine's own.

    Raises AgentboxError for an option that makes no sense.
    """
    options = spec.container
    folder = _working_folder(options)
    body: dict[str, Any] = {
        "Image": check(spec),
        # The whole command as the entry point: an image's own would come before it.
        "Entrypoint": [_text(word, "the command") for word in command.argv],
        "Cmd": [],
        "Env": _environment(options.get("env") or (), command.env, stdio.tty),
        "User": str(options.get("user") or _own_user(facts)),
        "Tty": stdio.tty,
        "OpenStdin": stdio.stdin,
        "StdinOnce": stdio.stdin,
        "AttachStdin": stdio.stdin,
        "AttachStdout": True,
        "AttachStderr": True,
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": _labels(spec, cgroup),
        "HostConfig": _host_config(spec, facts, folder, stdio, parent, socket),
    }
    if workdir := options.get("workdir") or (folder if options.get("mount_cwd", True) else None):
        body["WorkingDir"] = str(workdir)
    return body


def _labels(spec: BoxSpec, cgroup: str | None) -> dict[str, str]:
    labels = {RUN: spec.run_id, TASK: spec.task_id, HOME: spec.home, HOST: os.uname().nodename}
    return {**labels, CGROUP: cgroup} if cgroup else labels


def _host_config(
    spec: BoxSpec, facts: Facts, folder: str | None, stdio: Stdio, parent: str | None, socket: str | None
) -> dict[str, Any]:
    options = spec.container
    config: dict[str, Any] = {
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "CapDrop": ["ALL"],
        "CapAdd": [str(cap) for cap in options.get("caps") or ()],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": bool(options.get("read_only")),
        "Mounts": _mounts(spec, facts, folder, socket),
        **_limits(spec, facts),
    }
    if options.get("network"):
        config["NetworkMode"] = _network(str(options["network"]))
    if parent:
        config["CgroupParent"] = parent
    if stdio.size:
        config["ConsoleSize"] = list(stdio.size)
    return config


def _network(name: str) -> str:
    if name.startswith("container:"):
        raise AgentboxError(f"network {name}: another container's network is not offered", fix="none, bridge or host")
    return name


def _limits(spec: BoxSpec, facts: Facts) -> dict[str, Any]:
    """The tighter of the run's and the task's own, so that programs inside see what they have."""
    config: dict[str, Any] = {}
    for name, key, factor in (("memory", "Memory", 1), ("pids", "PidsLimit", 1), ("cpus", "NanoCpus", 10**9)):
        asked = [getattr(limits, name) for limits in (spec.limits, spec.run_limits)]
        values = [value for value in asked if value is not None]
        if values and name in facts.limits:
            config[key] = int(min(values) * factor)
    if "Memory" in config:
        config["MemorySwap"] = config["Memory"]
    return config


def limits_missing(spec: BoxSpec, facts: Facts) -> list[str]:
    """What an engine that is asked by its API alone can't hold, one line each. Raises unless best effort."""
    lines = []
    for limits, whose in ((spec.limits, "task"), (spec.run_limits, "run")):
        for name in limits.asked():
            line = _missing(name, whose, facts)
            if line and not limits.best_effort:
                raise AgentboxError(line, fix="--limits=best-effort goes on without it")
            lines += [line] if line else []
    return lines


def _missing(name: str, whose: str, facts: Facts) -> str:
    if name not in facts.limits:
        return f"--{name} cannot be applied: the engine on {facts.host} has no such controller"
    if whose == "run":
        return f"--{name} holds for each container of the run, not for their sum: the engine is not on this host"
    return ""


def _own_user(facts: Facts) -> str:
    """The caller's own ids; in a rootless engine the container's root is the caller."""
    return "0:0" if facts.rootless else f"{os.getuid()}:{os.getgid()}"


def _environment(names: Sequence[str], values: Mapping[bytes, bytes], tty: bool) -> list[str]:
    """`NAME=value` for the box's own names and the ones asked for, and no other variable of the caller."""
    wanted = [*_RUN_NAMES, *((b"TERM",) if tty else ()), *(os.fsencode(name) for name in names)]
    found = {name: values[name] for name in wanted if name in values}
    return [_text(name + b"=" + value, f"variable {os.fsdecode(name)}") for name, value in found.items()]


def _text(raw: bytes, what: str) -> str:
    """The engine takes JSON, so bytes that are no UTF-8 can't reach the container unchanged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise AgentboxError(f"{what} holds bytes that are not UTF-8, which docker cannot pass on") from None


# mounts


def _working_folder(options: Mapping[str, Any]) -> str | None:
    if options.get("cwd"):
        return str(options["cwd"])
    try:
        return os.getcwd()
    except OSError:
        return None


def _mounts(spec: BoxSpec, facts: Facts, folder: str | None, socket: str | None) -> list[dict[str, Any]]:
    options = spec.container
    mounts = [parse_mount(str(text)) for text in options.get("mounts") or ()]
    if options.get("mount_cwd", True) and folder is not None:
        if folder == "/":
            raise AgentboxError("the working folder is /, which cannot be mounted", fix="cd to the project first")
        mounts += [_bind(path) for path in (folder, common_git(folder)) if path]
    if socket and os.path.isdir(f"{spec.run_dir}/ctl"):
        mounts += [_bind(f"{spec.run_dir}/{name}", readonly=True) for name in ("ctl", "steer")]
        mounts.append(_bind(f"{spec.run_dir}/beat"))
    if not options.get("docker_sock"):
        _refuse_socket(mounts, socket)
    elif socket:
        mounts.append({"Type": "bind", "Source": socket, "Target": "/var/run/docker.sock"})
    return _each_target_once(mounts)


def _bind(path: str, *, readonly: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": path, "Target": path, "ReadOnly": readonly}


def _each_target_once(mounts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a person mounted at a place wins over what is mounted there by default."""
    found: dict[str, dict[str, Any]] = {}
    for mount in mounts:
        found.setdefault(os.path.normpath(mount["Target"]), mount)
    return list(found.values())


def _refuse_socket(mounts: Sequence[Mapping[str, Any]], socket: str | None) -> None:
    """The engine's socket is a way out of the box: who holds it can start containers that no stop reaches."""
    sockets = {os.path.realpath(path) for path in (socket, "/var/run/docker.sock") if path and os.path.exists(path)}
    for mount in mounts:
        source = os.path.realpath(mount["Source"]) if mount.get("Type") == "bind" else None
        for path in sockets:
            if source and (path + "/").startswith(source.rstrip("/") + "/"):
                raise AgentboxError(
                    f"mount {mount['Source']} holds the docker socket {path}", fix="ask for it with --docker-sock"
                )


def common_git(folder: str) -> str | None:
    """The `.git` that a linked worktree at `folder` shares (gitrepository-layout(5)), or None if it is none."""
    try:
        with open(f"{folder}/.git") as file:
            word, _, path = file.read(8192).partition(":")
        git_dir = os.path.normpath(os.path.join(folder, path.strip()))
        with open(f"{git_dir}/commondir") as file:
            common = os.path.normpath(os.path.join(git_dir, file.read(8192).strip()))
        with open(f"{git_dir}/gitdir") as file:
            back = file.read(8192).strip()
    except (OSError, UnicodeDecodeError):
        return None
    # Without the link back, a file that an agent left in the folder would open any repository to the next run.
    ours = word == "gitdir" and os.path.realpath(back) == os.path.realpath(f"{folder}/.git")
    return common if ours and os.path.isdir(f"{common}/objects") else None


def parse_mount(text: str) -> dict[str, Any]:
    """`type=bind,source=PATH,target=PATH[,readonly]` as docker's --mount, or `SOURCE:TARGET[:ro]`.

    Raises AgentboxError.
    """
    fields = _short(text) if "=" not in text else _long(text)
    kind = fields.get("type", "bind")
    target, source = fields.get("target", ""), fields.get("source", "")
    wrong = ""
    if kind not in ("bind", "volume", "tmpfs"):
        wrong = f"type {kind} is not bind, volume or tmpfs"
    elif not target.startswith("/"):
        wrong = "the target is no absolute path"
    elif kind == "bind" and not source.startswith("/"):
        wrong = "the source is no absolute path"
    if wrong:
        raise AgentboxError(f"bad mount {text!r}: {wrong}", fix="write type=bind,source=/from,target=/to[,readonly]")
    mount: dict[str, Any] = {"Type": kind, "Target": target, "ReadOnly": fields.get("readonly", "") == "true"}
    return {**mount, "Source": source} if source else mount


def _short(text: str) -> dict[str, str]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or parts[2:] not in ([], ["ro"], ["rw"]):
        return {}
    return {"source": parts[0], "target": parts[1], "readonly": "true" if parts[2:] == ["ro"] else ""}


def _long(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = _BIND.get(key, key)
        if key not in ("type", "source", "target", "readonly"):
            raise AgentboxError(
                f"bad mount {text!r}: no field {key!r}", fix="type, source, target and readonly are known"
            )
        fields[key] = value if equals else "true"
    return fields
