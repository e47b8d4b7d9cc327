"""Where cgroup v2 is mounted, and where a process sits in it.

Sources: cgroups(7), proc(5) on /proc/PID/mountinfo and /proc/PID/cgroup, cgroup_namespaces(7).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from sandbox.kernel.files import read_bytes

_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True)
class Mount:
    """A cgroup2 mount: `point`, its directory; `root`, the cgroup that it shows as its top."""

    point: str
    root: str
    writable: bool


_kept: Mount | None = None


def _unescape(field: bytes) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    return os.fsdecode(_OCTAL.sub(lambda m: bytes([int(m[1], 8)]), field))


def parse_mountinfo(text: bytes) -> list[Mount]:
    """The cgroup2 mounts of a mountinfo, in its order; lines that make no sense are passed over."""
    found = []
    for line in text.split(b"\n"):
        fields, dash, rest = line.partition(b" - ")
        head, tail = fields.split(b" "), rest.split(b" ")
        if not dash or len(head) < 6 or tail[0] != b"cgroup2":
            continue
        options = head[5].split(b",") + (tail[2].split(b",") if len(tail) > 2 else [])
        found.append(Mount(_unescape(head[4]), _unescape(head[3]), b"ro" not in options))
    return found


def cgroup2_mount() -> Mount | None:
    """The cgroup2 mount to work in, or None where the machine has none that can be seen.

    A mount may be hidden under a later one, so each is tried; one that shows the whole tree and can be
    written comes before one that cannot. Hybrid hosts mount it beside the v1 hierarchies. What was found is
    kept for as long as it is there.
    """
    global _kept
    if _kept and os.path.exists(f"{_kept.point}/cgroup.procs"):
        return _kept
    try:
        mounts = parse_mountinfo(read_bytes("/proc/self/mountinfo"))
    except OSError:
        return None
    seen = [m for m in mounts if os.path.exists(os.path.join(m.point, "cgroup.procs"))]
    _kept = max(seen, key=lambda m: (m.writable, m.root == "/"), default=None)
    return _kept


def parse_proc_cgroup(text: bytes) -> str | None:
    """The cgroup2 path out of a /proc/PID/cgroup (its `0::` line), or None."""
    for line in text.split(b"\n"):
        if line.startswith(b"0::/"):
            return os.fsdecode(line[3:].removesuffix(b" (deleted)"))
    return None


def cgroup_of(pid: int | None = None, mount: Mount | None = None) -> str | None:
    """The directory of a process's cgroup (the caller's own by default); None = could not tell.

    None also where the process sits outside of what the mount shows (another cgroup namespace, a bind
    mount of a subtree).
    """
    mount = mount or cgroup2_mount()
    try:
        path = parse_proc_cgroup(read_bytes(f"/proc/{'self' if pid is None else pid}/cgroup"))
    except OSError:
        return None
    if mount is None or path is None or path.startswith("/.."):
        return None
    return directory(path, mount)


def directory(path: str, mount: Mount) -> str | None:
    """The directory under `mount` that shows cgroup `path`, or None if the mount does not show it."""
    root = mount.root.rstrip("/")
    if path != root and not path.startswith(root + "/"):
        return None
    return (mount.point.rstrip("/") + path[len(root) :]).rstrip("/") or "/"


def filesystem_of(path: str) -> str | None:
    """The type of the file system that holds `path` (`ext4`, `nfs4`, `fuse.sshfs`), or None."""
    try:
        device = os.stat(path).st_dev
        lines = read_bytes("/proc/self/mountinfo").split(b"\n")
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in lines:
        head, _, tail = line.partition(b" - ")
        fields = head.split(b" ")
        if len(fields) > 4 and fields[2] == wanted:
            return tail.split(b" ")[0].decode("ascii", "replace")
    return None
