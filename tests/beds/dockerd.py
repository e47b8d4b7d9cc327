"""A docker engine for the host's own tests: a private dockerd, in a mount namespace and a cgroup of its own.

A container's cgroup is `docker/<id>` below the cgroup v2 mount (or below the client's `--cgroup-parent`), and
can be read from outside. There is no network, no image but IMAGE, and on a hybrid machine no limits.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.beds import space
from tests.beds.base import missing_tools, scratch, tail, wait_until

IMAGE = "agentbox-test/busybox"
_TOOLS = ("dockerd", "containerd", "busybox", "unshare", "setpriv")


def missing() -> str | None:
    """Why this machine cannot have an engine, or None."""
    if space.cgroup2_mount() is None:
        return "no cgroup v2 mounted"
    return missing_tools(_TOOLS, "docker.io busybox-static")


class Engine:
    """Docker's HTTP API over a unix socket (Docker Engine API v1.41), without a client library."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def ask(self, method: str, url: str, body: bytes | None = None, timeout: float = 60) -> Any:
        """The decoded answer; OSError if none comes, RuntimeError with the engine's words if it refuses."""
        link = http.client.HTTPConnection("docker", timeout=timeout)
        link.sock = socket.socket(socket.AF_UNIX)
        link.sock.settimeout(timeout)
        try:
            link.sock.connect(str(self.path))
            link.request(method, url, body, {"Content-Type": "application/x-tar"} if body else {})
            with link.getresponse() as answer:
                text = answer.read().decode()
        finally:
            link.close()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {url}: {answer.status} {text.strip()}")
        is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
        return json.loads(text) if is_json else text

    def containers(self, label: str | None = None) -> list[dict[str, Any]]:
        """All containers, running or not, as `GET /containers/json` gives them."""
        filters = quote(json.dumps({"label": [label]})) if label else quote("{}")
        found: list[dict[str, Any]] = self.ask("GET", f"/containers/json?all=1&filters={filters}")
        return found

    def remove(self, container: str) -> None:
        """Kill and remove a container; one that is gone is fine."""
        with contextlib.suppress(RuntimeError):
            self.ask("DELETE", f"/containers/{container}?force=1&v=1")

    def import_busybox(self) -> None:
        """Make IMAGE out of the machine's static busybox."""
        self.ask("POST", f"/images/create?fromSrc=-&repo={quote(IMAGE)}&tag=latest", busybox_tar())


def busybox_tar() -> bytes:
    """A root file system as a tar: /bin/busybox, a link for each of its commands, /tmp, /etc/passwd."""
    folder = scratch("image")
    try:
        for name in ("bin", "tmp", "etc", "proc", "sys", "dev", "root"):
            (folder / name).mkdir()
        binary = shutil.which("busybox")
        assert binary is not None
        shutil.copy(binary, folder / "bin" / "busybox")
        applets = subprocess.run([binary, "--list"], check=True, capture_output=True, text=True).stdout
        for applet in applets.split():
            if applet != "busybox":
                (folder / "bin" / applet).symlink_to("busybox")
        (folder / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
        (folder / "etc" / "group").write_text("root:x:0:\n")
        (folder / "tmp").chmod(0o1777)
        return subprocess.run(["tar", "-C", str(folder), "-c", "."], check=True, capture_output=True).stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Dockerd:
    """The daemon. `host` for DOCKER_HOST, `engine` to ask it, `pid` of dockerd itself (None while stopped).

    Its data lasts over `stop`/`kill` and `start`, so restart policies and leftovers can be seen; `remove`
    ends all.
    """

    def __init__(self) -> None:
        self.folder = scratch("dockerd")
        self.socket = self.folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.engine = Engine(self.socket)
        mount = space.cgroup2_mount()
        assert mount is not None
        self.mount = mount
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.cgroups: list[Path] = []
        self.before = set(space.tree(mount))
        try:
            self.start()
            self.engine.import_busybox()
        except BaseException:
            self.remove()
            raise

    @property
    def pid(self) -> int | None:
        """dockerd's pid, None while it is not running."""
        return None if self.process is None or self.process.poll() is not None else self.process.pid

    def start(self) -> None:
        """Start the daemon and wait until it answers; nothing if it runs."""
        if self.pid is not None:
            return
        self.starts += 1
        cgroup = f"{self.folder.name}.{self.starts}"
        self.cgroups.append(self.mount / cgroup)
        (self.folder / "config").write_text("{}")  # not the machine's own /etc/docker/daemon.json
        # dockerd refuses to start if another process has its old pid by now
        (self.folder / "pid").unlink(missing_ok=True)
        with open(self.folder / "log", "ab") as log:
            self.process = space.start_private(self._argv(), cgroup, log)
        try:
            wait_until(self._answers, 60, "dockerd answers")
        except (TimeoutError, ChildProcessError) as error:
            raise RuntimeError(f"{error}\n{self.log()}") from None

    def _argv(self) -> list[str]:
        return [
            "dockerd",
            "--host", self.host,
            "--data-root", f"{self.folder}/data",
            "--exec-root", f"{self.folder}/exec",
            "--pidfile", f"{self.folder}/pid",
            "--config-file", f"{self.folder}/config",
            "--storage-driver", "vfs",
            "--exec-opt", "native.cgroupdriver=cgroupfs",
            "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none",
        ]  # fmt: skip

    def _answers(self) -> bool:
        if self.pid is None:
            raise ChildProcessError("dockerd ended")
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(self.engine.ask("GET", "/_ping", timeout=5) == "OK")
        return False

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM, as its service manager would: containers are stopped, too."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """SIGKILL: the daemon is gone, its containers and their shims go on."""
        self._end(signal.SIGKILL, 10)
        pidfile = self.folder / "exec" / "containerd" / "containerd.pid"
        if pidfile.exists():  # it dies with dockerd; one that is seen still dying makes the next start fail
            containerd = int(pidfile.read_text())
            wait_until(lambda: not space.is_alive(containerd), 10, "containerd ended")
            pidfile.unlink(missing_ok=True)

    def _end(self, sig: signal.Signals, timeout: float) -> None:
        if self.process is not None:
            self.process.send_signal(sig)
            self.process.wait(timeout)

    def log(self) -> str:
        """The end of what the daemon printed."""
        return tail(self.folder / "log")

    def remove(self) -> None:
        """Remove its containers, end the daemon and all that it started, its cgroups and its files."""
        if self.pid is not None:
            with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):
                for container in self.engine.containers():
                    self.engine.remove(container["Id"])
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
        for cgroup in self.cgroups:
            space.end_tree(cgroup)
        for cgroup in self._left():
            space.end_tree(cgroup)
        docker = self.mount / "docker"
        if docker not in self.before:
            with contextlib.suppress(OSError):
                docker.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _left(self) -> list[Path]:
        """Its containers' cgroups that are still there: known by the id, which is a folder of its data."""
        data = self.folder / "data" / "containers"
        ids = [path.name for path in data.iterdir()] if data.is_dir() else []
        docker = self.mount / "docker"
        return [docker / name for name in ids if (docker / name).exists()]
