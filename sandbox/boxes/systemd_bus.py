"""Talking to a systemd manager through pystemd: transient units, with the job's result awaited.

Source: org.freedesktop.systemd1(5). pystemd is imported where it is used: it is an extra, and heavy.
Each function here is meant to run apart (kernel.spawn.apart), which bounds it in time.
"""

from __future__ import annotations

import os
import time
from typing import Any

from sandbox.boxes.base import Limits, Unavailable

INSTALL = "pip install 'agentbox-launcher[systemd]' (needs gcc, python3-dev, pkg-config and libsystemd-dev)"
JOB_SECONDS = 20
NO_LIMIT = 2**64 - 1


def manager_socket(user: bool) -> str:
    """The manager's own socket, which needs no D-Bus daemon. Raises Unavailable."""
    path = f"{runtime_dir()}/systemd/private" if user else "/run/systemd/private"
    if os.path.exists(path):
        return path
    if user:
        from sandbox.boxes.repairs import lingering

        raise Unavailable(f"no systemd user manager for uid {os.geteuid()} ({path} does not exist)", fix=lingering())
    raise Unavailable("systemd is not running here (no /run/systemd/private)", fix="use --backend cgroup")


def runtime_dir() -> str:
    """XDG_RUNTIME_DIR, or where pam_systemd(8) puts it: cron and su start without it, sudo -E with another's.

    Where a manager has its socket (a run may have a directory of its own, without one).
    """
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    try:
        mine = bool(given) and os.stat(f"{given}/systemd").st_uid == os.geteuid()
    except OSError:
        mine = False
    return given if mine else f"/run/user/{os.geteuid()}"


def start_slice(socket: str, name: str, description: str, limits: Limits) -> bool:
    """Start a transient slice; False if a unit of that name is loaded already. Raises RuntimeError."""
    properties: dict[str, Any] = {
        "Description": description.encode("utf-8", "replace"),
        "CollectMode": b"inactive-or-failed",
        **_limits(limits),
    }
    return _start(socket, name, properties)


def start_scope(socket: str, name: str, slice_name: str, description: str, pid: int, limits: Limits) -> bool:
    """Start a transient scope around `pid`; False if a unit of that name is loaded. Raises RuntimeError."""
    properties: dict[str, Any] = {
        "Description": description.encode("utf-8", "replace"),
        "CollectMode": b"inactive-or-failed",
        "Slice": slice_name.encode(),
        "Delegate": True,
        "_custom": (b"PIDs", b"au", [pid]),
        **_limits(limits),
    }
    return _start(socket, name, properties)


def stop_unit(socket: str, name: str) -> bool:
    """Stop a unit and wait for it; False if it was not loaded. Raises RuntimeError."""
    return _job(socket, b"StopUnit", lambda manager: manager.StopUnit(name.encode(), b"replace"))


def _start(socket: str, name: str, properties: dict[str, Any]) -> bool:
    return _job(
        socket,
        b"StartTransientUnit",
        lambda manager: manager.StartTransientUnit(name.encode(), b"fail", properties),
    )


def _limits(limits: Limits) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if limits.memory is not None:
        wanted["MemoryMax"] = limits.memory
    if limits.pids is not None:
        wanted["TasksMax"] = limits.pids
    if limits.cpus is not None:
        wanted["CPUQuotaPerSecUSec"] = int(limits.cpus * 1_000_000)
    return wanted


def _job(socket: str, method: bytes, call: Any) -> bool:
    """Make a call that returns a job, and wait for that job's JobRemoved signal.

    The match is in place before the call: a job may be done before its path is known here.
    """
    from pystemd.dbusexc import DBusBaseError
    from pystemd.dbuslib import DBusAddress
    from pystemd.systemd1 import Manager

    os.environ.setdefault("SYSTEMD_BUS_TIMEOUT", str(JOB_SECONDS))
    done: dict[bytes, bytes] = {}

    def on_removed(message: Any, error: Any = None, userdata: Any = None) -> None:
        message.process_reply(False)
        _number, job, _unit, result = message.body
        done[job] = result

    with DBusAddress(f"unix:path={socket}".encode(), peer_to_peer=True) as bus:
        destination, interface = b"org.freedesktop.systemd1", b"org.freedesktop.systemd1.Manager"
        bus.match_signal(destination, b"/org/freedesktop/systemd1", interface, b"JobRemoved", on_removed, None)
        manager = Manager(bus=bus, _autoload=True)
        try:
            job = call(manager.Manager)
        except DBusBaseError as error:
            if any(word in str(error) for word in ("UnitExists", "NoSuchUnit", "already loaded", "not loaded")):
                return False
            raise RuntimeError(f"{method.decode()}: {_text(error)}") from None
        deadline = time.monotonic() + JOB_SECONDS
        while job not in done:
            if bus.process().is_empty():
                bus.wait(1_000_000)
            if time.monotonic() > deadline:
                # The caller may be dead by now, so nobody else would end this.
                raise RuntimeError(f"{method.decode()}: its job is not done after {JOB_SECONDS} s")
    if done[job] not in (b"done", b"skipped"):
        raise RuntimeError(f"{method.decode()}: the job ended as {done[job].decode()}")
    return True


def _text(error: Exception) -> str:
    parts = [p.decode("utf-8", "replace") if isinstance(p, bytes) else str(p) for p in error.args]
    return " ".join(part for part in parts if part and part != "None")
