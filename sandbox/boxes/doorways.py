"""Ways out of a box that are open on this machine: what a process inside could have started elsewhere.

A box holds what its processes fork. A server outside that starts things on request is not held, so each such
socket, spool or right is named here, for people and for the reconciler.
"""

from __future__ import annotations

import glob
import os
import socket

from sandbox.kernel.mounts import cgroup2_mount

ENGINES = ("/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock")


def open_doorways() -> list[dict[str, str]]:
    """Each with `name`, `what` (the socket, file or right) and `effect`. Only what this user could use now."""
    return [*_engines(), *_managers(), *_terminals(), *_schedulers(), *_rights()]


def _row(name: str, what: str, effect: str) -> dict[str, str]:
    return {"name": name, "what": what, "effect": effect}


def _engines() -> list[dict[str, str]]:
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    paths = [*ENGINES, f"{runtime}/podman/podman.sock", f"{runtime}/docker.sock"]
    found = [
        _row("container engine", path, "docker run lives outside of the box")
        for path in paths
        if os.access(path, os.W_OK)
    ]
    host = os.environ.get("DOCKER_HOST")
    return found + ([_row("container engine", f"DOCKER_HOST={host}", "docker run lives elsewhere")] if host else [])


def _managers() -> list[dict[str, str]]:
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    found = []
    if os.geteuid() == 0 and os.path.exists("/run/systemd/private"):
        found.append(_row("systemd", "/run/systemd/private", "systemd-run starts units outside of the box"))
    if os.path.exists(f"{runtime}/systemd/private"):
        path = f"{runtime}/systemd/private"
        found.append(_row("systemd user manager", path, "systemd-run --user starts units outside of the box"))
    return found


def _terminals() -> list[dict[str, str]]:
    folder = os.environ.get("TMUX_TMPDIR") or "/tmp"
    sockets = glob.glob(f"{glob.escape(folder)}/tmux-{os.geteuid()}/*") + glob.glob("/run/screen/S-*/*")
    return [
        _row("terminal server", path, "a window opened there lives in that server's cgroup")
        for path in sockets
        if _answers(path)
    ]


def _answers(path: str) -> bool:
    """Does anybody listen? A server that was killed leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def _schedulers() -> list[dict[str, str]]:
    paths = {"at": ("/usr/bin/at", "/var/spool/cron/atjobs"), "cron": ("/usr/bin/crontab", "/var/spool/cron")}
    return [
        _row(name, command, "a queued job starts outside of the box, later")
        for name, (command, spool) in paths.items()
        if os.access(command, os.X_OK) and os.path.isdir(spool)
    ]


def _rights() -> list[dict[str, str]]:
    mount = cgroup2_mount()
    if mount and mount.writable and os.access(f"{mount.point}/cgroup.procs", os.W_OK):
        what = f"{mount.point} is writable"
        return [_row("cgroups", what, "a process may move itself to another cgroup")]
    return []
