"""The root file system that the nspawn and VM beds boot: Debian, built once and kept in the cache.

Built by mmdebstrap(1) from the packages of the machine's own suite, so that a Python environment made outside
carries over. The cache key is the digest of this file: change the recipe and a new root is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.beds.base import TREE, cache_dir, site_packages, tail

PYTHON_OF = {"bookworm": "3.11", "trixie": "3.13"}
_PACKAGES = """
systemd systemd-sysv dbus dbus-user-session libpam-systemd udev kmod docker.io iptables python3 procps
iproute2 cron at git busybox-static bubblewrap strace tmux jq
"""
EXTRA = {"trixie": ["docker-cli"]}

# Only what the VM needs to find its disk: a small initrd unpacks fast without KVM.
_INITRD = """
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/testbed"
printf 'virtio_pci\\nvirtio_blk\\next4\\n' > "$1/etc/initramfs-tools/modules"
"""

# Runs the job and ends the machine. In the VM the project is on a second disk, the job a tar on the third.
_START = """#!/bin/sh
export HOME=/root USER=root LOGNAME=root SHELL=/bin/sh LANG=C.UTF-8 TERM=dumb
log=/testbed/job/log
export TESTBED_REPORTS=/testbed/job/reports.jsonl
if [ -b /dev/vdb ]; then
    modprobe virtio_console
    mount -o ro /dev/vdb /testbed
    mount -t tmpfs -o mode=777 tmpfs /testbed/job
    tar -x -C /testbed/job -f /dev/vdc
    udevadm settle
    log=/dev/virtio-ports/testbed.log
    TESTBED_REPORTS=/dev/virtio-ports/testbed.reports
fi
exec </dev/null >"$log" 2>&1
systemctl is-system-running --wait >/dev/null
if [ -e /testbed/job/user ]; then
    user=$(cat /testbed/job/user)
    exec runuser -l "$user" -c "TESTBED_REPORTS=$TESTBED_REPORTS exec sh /usr/local/lib/testbed-user"
fi
exec sh /testbed/job/run
"""

_USER = """#!/bin/sh
export XDG_RUNTIME_DIR="/run/user/$(id -u)" LANG=C.UTF-8 TERM=dumb TESTBED_REPORTS
export DBUS_SESSION_BUS_ADDRESS="unix:path=$XDG_RUNTIME_DIR/bus"
for _ in $(seq 300); do
    case $(systemctl --user is-system-running 2>/dev/null) in running | degraded) break ;; esac
    sleep 0.1
done
exec sh /testbed/job/run
"""

_UNIT = """[Unit]
Description=Run the job of this test bed, then power off
After=systemd-user-sessions.service systemd-logind.service dbus.service cron.service atd.service
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=exec
ExecStart=/bin/sh /usr/local/lib/testbed
# what a test leaves behind is the leak gate's to find, not systemd's to hide
KillMode=mixed
TimeoutStopSec=5

[Install]
WantedBy=multi-user.target
"""

_AGENTBOX = """#!/bin/sh
exec /usr/bin/python3 -m sandbox.cli.main "$@"
"""

_DOCKER = '{"storage-driver": "vfs", "iptables": false, "ip6tables": false, "bridge": "none"}\n'

_QUIET = """
docker.service docker.socket containerd.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
e2scrub_all.timer e2scrub_reap.service fstrim.timer
"""
_MASKED = "console-getty.service getty@tty1.service serial-getty@ttyS0.service getty.target"


def suite() -> str:
    """TESTBED_SUITE, or the machine's Debian suite, or Debian 12's where it has none that is known here."""
    if chosen := os.environ.get("TESTBED_SUITE"):
        return chosen
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text().splitlines():
            if line.startswith("VERSION_CODENAME="):
                name = line.partition("=")[2].strip('"')
                return name if name in PYTHON_OF else "bookworm"
    return "bookworm"


def architecture() -> str:
    """Debian's name of the machine's architecture."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def root() -> Path:
    """The built root, made now if the cache has none; read-only by agreement: copy it to boot it.

    RuntimeError with the end of the log if it cannot be built.
    """
    key = hashlib.sha256(Path(__file__).read_bytes() + suite().encode()).hexdigest()[:16]
    target = cache_dir() / f"root-{suite()}-{key}"
    with building(target) as wanted:
        if wanted:
            _build(wanted)
    return target


def image() -> Path:
    """The same root as an ext4 disk image, to be used as the backing file of an overlay."""
    source = root()
    target = source.with_name(source.name + ".img")
    with building(target) as wanted:
        if wanted:
            with open(wanted, "wb") as disk:
                disk.truncate(6 << 30)
            run(["mkfs.ext4", "-q", "-F", "-d", str(source), str(wanted)])
    return target


def environment() -> Path:
    """site-packages for the root's python3: the running one if it fits, else made with /usr/bin/python3."""
    version = PYTHON_OF[suite()]
    if version == "{}.{}".format(*sys.version_info[:2]):
        return site_packages()
    pyproject = (TREE / "pyproject.toml").read_bytes()
    target = cache_dir() / f"env-{version}-{hashlib.sha256(pyproject).hexdigest()[:16]}"
    with building(target) as wanted:
        if wanted:
            project = tomllib.loads(pyproject.decode())["project"]
            needs = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
            run(["/usr/bin/python3", "-m", "venv", str(wanted)])
            run([f"{wanted}/bin/python", "-m", "pip", "install", "-q", *needs])
    return target / "lib" / f"python{version}" / "site-packages"


def no_environment() -> str | None:
    """Why the root's python3 cannot have an environment on this machine, or None."""
    version = PYTHON_OF[suite()]
    if version == "{}.{}".format(*sys.version_info[:2]):
        return None
    ask = ["/usr/bin/python3", "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        found = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    except OSError:
        found = ""
    return None if found == version else f"the root's Python is {version}, no such Python with venv here"


@contextlib.contextmanager
def building(target: Path) -> Iterator[Path | None]:
    """Yield where to build `target`, or None if it is there; whole or not at all, one session at a time."""
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(target.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            yield None
            return
        new = target.with_name(target.name + ".new")
        remove(new)
        yield new
        _drop_older(target)
        os.rename(new, target)


def _drop_older(target: Path) -> None:
    """Make room: what other recipes made stays for a week."""
    for other in target.parent.iterdir():
        if other != target and time.time() - other.lstat().st_mtime > 7 * 86400 and other.suffix != ".lock":
            remove(other)


def remove(path: Path) -> None:
    """Remove a file or a folder, whichever it is, if there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def run(argv: list[str]) -> None:
    """Run a command of the build; RuntimeError with its last lines if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-25:])
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}:\n{last}")


def _build(new: Path) -> None:
    log = new.with_name(new.name + ".log")
    packages = [*_PACKAGES.split(), f"linux-image-cloud-{architecture()}", *EXTRA.get(suite(), [])]
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--include={','.join(packages)}"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale")]
    argv += [f"--essential-hook={_INITRD}", suite(), str(new)]
    with open(log, "wb") as out:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT).returncode
    if code:
        raise RuntimeError(f"mmdebstrap ended with {code}:\n{tail(log, 25)}")
    log.unlink()
    _settle(new)


def _settle(new: Path) -> None:
    """Make the bare Debian a bed: the job's unit, the project on sys.path, a plain user, no timers."""
    version = PYTHON_OF[suite()]
    files = {
        "usr/local/lib/testbed": _START,
        "usr/local/lib/testbed-user": _USER,
        "etc/systemd/system/testbed.service": _UNIT,
        "usr/local/bin/agentbox": _AGENTBOX,
        f"usr/local/lib/python{version}/dist-packages/testbed.pth": "/testbed/tree\n/testbed/site\n",
        "etc/docker/daemon.json": _DOCKER,
        "etc/hostname": "testbed\n",
        "etc/hosts": "127.0.0.1 localhost testbed\n",
        "etc/machine-id": "a" * 32 + "\n",  # a root without one presets all units at its first boot
        "var/lib/systemd/linger/dev": "",
    }
    for name, text in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (new / "usr/local/bin/agentbox").chmod(0o755)
    for folder in ("tree", "site", "job"):
        (new / "testbed" / folder).mkdir(parents=True)
    run(["chroot", str(new), "useradd", "-m", "-s", "/bin/bash", "dev"])
    run(["chroot", str(new), "systemctl", "enable", "testbed.service"])
    run(["chroot", str(new), "systemctl", "disable", *_QUIET.split()])
    run(["chroot", str(new), "systemctl", "mask", *_MASKED.split()])
