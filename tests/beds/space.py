"""Cgroups and private mount namespaces for the beds, and their end.

A bed never touches the machine's own mounts: it starts in a mount namespace of its own, with the cgroup v2
hierarchy at /sys/fs/cgroup, and in a cgroup of its own whose end is the end of the bed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

PREFIX = "testbed"
MARK = "AGENTBOX_TEST"  # the variable by which the leak gate knows the processes of a test

_ENTER = """
set -eu
cgroup=$1; shift
mount --make-rprivate /
umount -l /sys/fs/cgroup 2>/dev/null || :
mount -t cgroup2 none /sys/fs/cgroup
mkdir "/sys/fs/cgroup/$cgroup"
echo $$ > "/sys/fs/cgroup/$cgroup/cgroup.procs"
exec "$@"
"""


def cgroup2_mount(mountinfo: str = "/proc/self/mountinfo") -> Path | None:
    """Where cgroup v2 is mounted (/proc/[pid]/mountinfo, proc(5)), or None."""
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields, _, rest = line.partition(" - ")
            if rest.split(" ", 1)[0] == "cgroup2":
                return Path(fields.split(" ")[4].encode().decode("unicode_escape"))
    return None


def start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: the start in clock ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie (proc(5), state in /proc/PID/stat)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def owner() -> str:
    """This test session as a part of a name: `PID.START`."""
    return f"{os.getpid()}.{start_ticks(os.getpid())}"


def owner_lives(name: str) -> bool:
    """Whether the session that owns `PREFIX.PID.START.WHAT` still runs."""
    _, pid, ticks, _ = name.split(".", 3)
    return not pid.isdigit() or str(start_ticks(int(pid))) == ticks


def clean_env() -> dict[str, str]:
    """The environment for something that outlives one test."""
    return {k: v for k, v in os.environ.items() if not k.startswith("AGENTBOX_")}


def start_private(argv: list[str], cgroup: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `argv` in a private mount namespace and in the cgroup `cgroup` below the v2 root; root only.

    The process ends with the test session (prctl(2), PR_SET_PDEATHSIG).
    """
    enter = ["setpriv", "--pdeathsig", "KILL", "unshare", "-m", "sh", "-c", _ENTER, "sh", cgroup]
    return subprocess.Popen(
        enter + argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=clean_env(),
        start_new_session=True,
    )


def tree(top: Path) -> list[Path]:
    """`top` and every cgroup below it, the deepest first."""
    found = []
    for where, _, _ in os.walk(top, topdown=False):
        found.append(Path(where))
    return found


def members(top: Path) -> list[int]:
    """The pids in `top` and below; a cgroup that goes away meanwhile counts as empty."""
    pids: list[int] = []
    for cgroup in tree(top):
        with contextlib.suppress(OSError):
            pids += [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    return pids


def populated(top: Path) -> bool:
    """`populated` of cgroup.events (Documentation/admin-guide/cgroup-v2.rst); False if the cgroup is gone."""
    try:
        return "populated 1" in (top / "cgroup.events").read_text()
    except OSError:
        return False


def kill_tree(top: Path) -> None:
    """Thaw and SIGKILL all in `top` and below, once."""
    for cgroup in reversed(tree(top)):
        with contextlib.suppress(OSError):
            (cgroup / "cgroup.freeze").write_text("0")
    try:
        (top / "cgroup.kill").write_text("1")
    except OSError:  # before Linux 5.14, or a threaded cgroup
        for pid in members(top):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def end_tree(top: Path, timeout: float = 10) -> bool:
    """End all in `top` and remove it; False if that did not work within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while top.exists():
        if populated(top):
            kill_tree(top)
        for cgroup in tree(top):
            with contextlib.suppress(OSError):
                cgroup.rmdir()
        if not top.exists():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
