"""The VM bed: qemu without KVM, Debian's kernel, pure cgroup v2 with all controllers, systemd as PID 1, root.

`VmBed` runs tests inside one boot. `Vm` is for a test on the host that needs more: boots that share a disk, a
power cut in the middle.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.beds import root, space
from tests.beds.base import Job, copy_tree, missing_tools, scratch, sweep, tail

_TOOLS = ("qemu-system-x86_64", "qemu-img", "mkfs.ext4", "mmdebstrap", "setpriv")
_NOT_INSIDE = ("mypy", "mypyc", "ruff", "pip", "setuptools", "*.dist-info/RECORD")
MEMORY = "2048"  # MiB


def missing() -> str | None:
    """Why this machine cannot have a VM, or None."""
    if platform.machine() != "x86_64":
        return f"the VM is made for x86_64, this is {platform.machine()}"
    tools = missing_tools(_TOOLS, "qemu-system-x86 qemu-utils e2fsprogs mmdebstrap")
    return tools or root.no_environment()


@dataclass(frozen=True)
class Output:
    """What a boot came to: `text` printed by the script, `cut` whether the plug was pulled."""

    text: str
    cut: bool


class Vm:
    """A machine whose disk lasts from boot to boot. End it with `remove`, or use it as a context manager."""

    def __init__(self) -> None:
        sweep()
        self.folder = scratch("vm")
        try:
            self.disk = self.folder / "disk.qcow2"
            backing = ["-b", str(root.image()), "-F", "raw"]
            root.run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, str(self.disk)])
            self.project = self._project()
        except BaseException:
            self.remove()
            raise
        self.boots = 0

    def _project(self) -> Path:
        """The second disk: tree/, site/ and an empty job/."""
        top = self.folder / "project"
        copy_tree(top / "tree")
        (top / "job").mkdir()
        ignore = shutil.ignore_patterns(*_NOT_INSIDE)
        shutil.copytree(root.environment(), top / "site", symlinks=True, ignore=ignore)
        image = self.folder / "project.img"
        with open(image, "wb") as disk:
            disk.truncate(512 << 20)
        root.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", str(top), str(image)])
        shutil.rmtree(top)
        return image

    def start(self, job: Path) -> Boot:
        """Boot with the job folder `job`; its script `run` runs as root, then the machine powers off."""
        self.boots += 1
        folder = self.folder / f"boot{self.boots}"
        folder.mkdir()
        root.run(["tar", "-C", str(job), "-cf", str(folder / "job.tar"), "."])
        return Boot(self, folder)

    def boot(self, script: str, timeout: float = 300, cut_on: str | None = None) -> Output:
        """Boot, run `script` (sh, root, the project importable, `agentbox` on PATH), power off, give what it
        printed.

        `cut_on`: pull the plug as soon as this text is printed. TimeoutError after `timeout` seconds, with
        the output.
        """
        job = self.folder / "job"
        job.mkdir(exist_ok=True)
        (job / "run").write_text(script)
        running = self.start(job)
        deadline = time.monotonic() + timeout
        try:
            while running.alive():
                if cut_on is not None and cut_on in running.printed():
                    running.stop()
                    return Output(running.printed(), cut=True)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not off within {timeout:g} s:\n{running.log()}")
                time.sleep(0.05)
            return Output(running.printed(), cut=False)
        finally:
            running.stop()

    def remove(self) -> None:
        """Remove its files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Vm:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Boot:
    """One boot of a `Vm`, powered on."""

    def __init__(self, vm: Vm, folder: Path) -> None:
        self.vm = vm
        self.folder = folder
        self.reports = folder / "reports"
        kernel, initrd = _kernel()
        argv = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64"]
        argv += ["-accel", "tcg,thread=multi", "-cpu", "max", "-m", MEMORY, "-smp", "2"]
        argv += ["-display", "none", "-no-reboot", "-nic", "none", "-serial", f"file:{folder}/console"]
        argv += ["-kernel", str(kernel), "-initrd", str(initrd)]
        # On a busy host the kernel's own check of the emulated timer fails, and it gives up (no_timer_check).
        argv += ["-append", "root=/dev/vda rw console=ttyS0 quiet panic=-1 mitigations=off no_timer_check"]
        for file, kind in ((vm.disk, "qcow2"), (vm.project, "raw"), (folder / "job.tar", "raw")):
            argv += ["-drive", f"file={file},format={kind},if=virtio,cache=unsafe"]
        argv += ["-device", "virtio-serial-pci"]
        for port in ("reports", "log"):
            argv += ["-chardev", f"file,id={port},path={folder / port}"]
            argv += ["-device", f"virtserialport,chardev={port},name=testbed.{port}"]
        with open(folder / "qemu", "wb") as log:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=space.clean_env()
            )

    def alive(self) -> bool:
        """Whether it is still on."""
        return self.process.poll() is None

    def printed(self) -> str:
        """What the job has printed."""
        with contextlib.suppress(OSError):
            return (self.folder / "log").read_text(errors="replace")
        return ""

    def log(self) -> str:
        """The job's output, or the console and qemu's own words if the job never began."""
        return tail(self.folder / "log") or tail(self.folder / "console") + tail(self.folder / "qemu")

    def stop(self) -> None:
        """Pull the plug."""
        self.process.kill()
        self.process.wait()


def _kernel() -> tuple[Path, Path]:
    boot = root.root() / "boot"
    (kernel,) = boot.glob("vmlinuz-*")
    (initrd,) = boot.glob("initrd.img-*")
    return kernel, initrd


class VmBed:
    """The bed of the plugin."""

    def __init__(self, name: str) -> None:
        self.name = name

    def missing(self) -> str | None:
        """Why this machine cannot have it, or None."""
        return missing()

    def start(self, job: Job) -> BedBoot:
        """Boot a machine of its own and begin the job."""
        machine = Vm()
        try:
            job.write(machine.folder / "job")
            return BedBoot(machine, machine.start(machine.folder / "job"))
        except BaseException:
            machine.remove()
            raise


class BedBoot:
    """A `Boot` that takes its machine with it."""

    def __init__(self, vm: Vm, boot: Boot) -> None:
        self.vm = vm
        self.boot = boot
        self.reports = boot.reports
        self.alive = boot.alive
        self.log = boot.log

    def stop(self) -> None:
        """Pull the plug and remove the machine."""
        self.boot.stop()
        self.vm.remove()
