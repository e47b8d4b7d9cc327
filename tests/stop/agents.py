"""Small hostile programs, and one that is not: what an agent may leave running, each by one trick.

usage: agents.py NAME. Works in the current directory: `pid-X` (pid and start ticks) and `beat-X` (a byte a beat)
of each process, and `ready` once all of them run. Outside of a run, where the same argv serves as the
bystander, the tricks with cgroups are left out.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

INTERVAL = 0.02
END = time.monotonic() + 3600  # a bystander of a test session that was killed ends by itself
BOXED = "AGENTBOX_RUN_ID" in os.environ
BIT = {"x86_64": 60, "aarch64": 93}  # SYS_exit, which ends the calling thread alone: exit(2)


def register(name: str) -> None:
    """Say who we are."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    Path(f".{name}.{os.getpid()}").write_text(f"{os.getpid()} {ticks}")
    Path(f".{name}.{os.getpid()}").rename(f"pid-{name}")


def beat(name: str) -> None:
    """Never returns."""
    register(name)
    fd = os.open(f"beat-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while time.monotonic() < END:
        os.write(fd, b".")
        time.sleep(INTERVAL)
    os._exit(0)


def child(name: str, *before: Callable[[], object], act: Callable[[str], None] = beat) -> int:
    """Fork a process that does `before`, then beats; returns once it has registered."""
    pid = os.fork()
    if pid == 0:
        try:
            for step in before:
                step()
            act(name)
        finally:
            os._exit(1)
    while not Path(f"pid-{name}").exists():
        time.sleep(0.001)
    return pid


def main_beats() -> None:
    Path("ready").touch()
    beat("main")


def own_cgroup() -> Path:
    """Our cgroup v2 directory."""
    own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.startswith("cgroup2 "):
            return Path(fields.split()[4] + own)
    raise SystemExit("no cgroup v2")


def move(group: Path) -> Callable[[], object]:
    """A step: into `group`."""
    return lambda: (group / "cgroup.procs").write_text("0") if BOXED else None


def attached() -> None:
    child("one")
    child("two")
    main_beats()


def orphan() -> None:
    """A step: what forks twice has no parent of the run left."""
    os.setsid()
    if os.fork():
        os._exit(0)


def double_fork() -> None:
    child("daemon", orphan)
    main_beats()


def by_shell(line: str) -> None:
    """Start `agents.py alone` by a shell that ends at once."""
    subprocess.run(["sh", "-c", line, "sh", sys.executable, __file__], check=True)
    while not Path("pid-alone").exists():
        time.sleep(0.001)
    main_beats()


def nohup() -> None:
    by_shell('nohup "$1" "$2" alone >/dev/null 2>&1 &')


def starter_gone() -> None:
    by_shell('(setsid -f "$1" "$2" alone) &')


def alone() -> None:
    beat("alone")


def ignore() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def term_ignored() -> None:
    ignore()
    child("two", os.setsid)
    main_beats()


def stopped() -> None:
    def stop(name: str) -> None:
        register(name)
        os.kill(os.getpid(), signal.SIGSTOP)

    pid = child("stopped", act=stop)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    main_beats()


def traced() -> None:
    """A process held by a tracer of its own."""

    def wait_traced(name: str) -> None:
        ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME, ptrace(2)
        register(name)
        os.kill(os.getpid(), signal.SIGUSR1)

    pid = child("traced", act=wait_traced)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    main_beats()


def vforked() -> None:
    """A parent in uninterruptible sleep: its vfork child lives on without exec."""
    subprocess.Popen([sys.executable, __file__, "vfork_parent"])
    while not Path("pid-vfork").exists():
        time.sleep(0.001)
    main_beats()


def vfork_parent() -> None:
    register("vfork")
    libc = ctypes.PyDLL(None)  # keeps the interpreter's lock: the child must not run Python
    libc.vfork.restype = ctypes.c_int
    if libc.vfork() == 0:
        while True:
            libc.pause()


def frozen() -> None:
    child("one")
    register("main")
    Path("ready").touch()
    if BOXED:
        (own_cgroup() / "cgroup.freeze").write_text("1")
    beat("main")


def v1_frozen() -> None:
    """Root on a machine that has the v1 freezer; the test removes the directory."""

    def still(name: str) -> None:
        register(name)
        while True:
            signal.pause()

    pid = child("frozen", act=still)
    if BOXED:
        group = Path("/sys/fs/cgroup/freezer") / Path("freezer").read_text()
        group.mkdir()
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        while (group / "freezer.state").read_text() != "FROZEN\n":
            time.sleep(0.001)
    main_beats()


def make_nested() -> Path:
    inner = own_cgroup() / "inner" / "agentbox" / "x"
    if BOXED:
        inner.mkdir(parents=True)
    return inner


def nested() -> None:
    inner = make_nested()
    child("deep", move(inner))
    child("middle", move(inner.parent.parent))
    main_beats()


def nested_frozen() -> None:
    inner = make_nested()
    child("deep", move(inner))
    if BOXED:
        (inner / "cgroup.freeze").write_text("1")
    main_beats()


def lock(top: Path) -> None:
    """Take all rights away from a cgroup's files and directories, the deepest first."""
    for where, _, names in os.walk(top, topdown=False):
        for name in names:
            os.chmod(os.path.join(where, name), 0)
        os.chmod(where, 0)


def nested_locked() -> None:
    inner = make_nested()
    child("deep", move(inner))
    if BOXED:
        lock(inner.parents[1])
    main_beats()


def box_locked() -> None:
    """Rights taken from the whole box, the run's parent and what holds the runs."""
    inner = make_nested()
    child("deep", move(inner))
    if BOXED:
        box = own_cgroup()
        lock(box)
        for above in (box.parent, box.parent.parent):
            for file in above.glob("cgroup.*"):
                file.chmod(0)
            above.chmod(0)
    main_beats()


def disown() -> None:
    """Marks the run's parent as somebody else's."""
    if BOXED:
        for group in (own_cgroup(), own_cgroup().parent):
            os.setxattr(group, "user.agentbox.home", b"/elsewhere")


def disowned() -> None:
    child("one", os.setsid)
    disown()
    main_beats()


def moved_out() -> None:
    """Out of the task's box into one of its own beside it, the task's removed, the mark changed."""
    beside = own_cgroup().parent / "beside"
    if BOXED:
        box = own_cgroup()
        beside.mkdir()
        move(beside)()
        while box.exists():  # a manager may be quicker
            try:
                box.rmdir()
            except OSError:
                time.sleep(INTERVAL)
        disown()
    child("one", os.setsid)
    main_beats()


def nested_threaded() -> None:
    """A threaded cgroup has no list of processes, and can't be killed by its own file."""
    inner = own_cgroup() / "inner"
    if BOXED:
        inner.mkdir()
        (inner / "cgroup.type").write_text("threaded")
    child("deep", move(inner))
    main_beats()


def box_threaded() -> None:
    """The box itself threaded: only an empty one can be made so, so its only process steps out for a moment."""
    if BOXED:
        box = own_cgroup()
        (box.parents[2] / "cgroup.procs").write_text("0")
        (box / "cgroup.type").write_text("threaded")
        (box / "cgroup.procs").write_text("0")
    child("one", os.setsid)
    main_beats()


def leader_gone() -> None:
    """The main thread has ended, another goes on."""

    def lose_leader(name: str) -> None:
        threading.Thread(target=beat, args=(name,)).start()
        while not Path(f"beat-{name}").exists():
            time.sleep(0.001)
        ctypes.CDLL(None).syscall(BIT[platform.machine()], 0)

    child("headless", os.setsid, act=lose_leader)
    main_beats()


def hopper() -> None:
    """A new pid at each beat."""

    def hop(name: str) -> None:
        register(name)
        fd = os.open(f"beat-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while time.monotonic() < END:
            os.write(fd, b".")
            if os.fork():
                os._exit(0)
            if not BOXED:
                time.sleep(INTERVAL)

    child("hopper", orphan, act=hop)
    main_beats()


def thousand() -> None:
    def still(name: str) -> None:
        while True:
            signal.pause()

    for number in range(1000 if BOXED else 1):
        if os.fork() == 0:
            if number % 2:
                os.setsid()
            still("")
    main_beats()


def bomb() -> None:
    """Forks wherever it can; made for a box with a limit. Outside of a run it does not go off."""

    def explode(name: str) -> None:
        register(name)
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(INTERVAL)

    if BOXED:
        child("bomb", os.setsid, act=explode)
    main_beats()


# for the rungs of an abort


def on_term(name: str) -> Callable[[], object]:
    """A step: SIGTERM is answered by the file `term-NAME` and an end with status 0."""

    def answer(*_: object) -> None:
        Path(f"term-{name}").touch()
        os._exit(0)

    return lambda: signal.signal(signal.SIGTERM, answer)


def polite() -> None:
    child("one", on_term("one"))
    child("two", on_term("two"), os.setsid)
    on_term("main")()
    main_beats()


def polite_stopped() -> None:
    def stop(name: str) -> None:
        register(name)
        os.kill(os.getpid(), signal.SIGSTOP)

    pid = child("one", on_term("one"), act=stop)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    on_term("main")()
    main_beats()


def polite_frozen() -> None:
    on_term("main")()
    child("one", on_term("one"))
    register("main")
    Path("ready").touch()
    if BOXED:
        (own_cgroup() / "cgroup.freeze").write_text("1")
    beat("main")


def leaver() -> None:
    """Leaves by itself once it reads the order STOP at a boundary, its work saved."""
    on_term("main")()
    register("main")
    Path("ready").touch()
    fd = os.open("beat-main", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while not BOXED or Path(os.environ["AGENTBOX_CONTROL"]).read_text().startswith("RUN"):
        os.write(fd, b".")
        time.sleep(INTERVAL)
    Path("saved").touch()


def early_leaver() -> None:
    """Leaves at STOP; its worker goes on until `done` is there, and then saves its work."""

    def finish_first(name: str) -> None:
        register(name)
        fd = os.open(f"beat-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        while not Path("done").exists():
            os.write(fd, b".")
            time.sleep(INTERVAL)
        Path("worker-saved").touch()

    child("worker", on_term("worker"), act=finish_first)
    leaver()


def supervisor() -> None:
    """Restarts a worker that ends, as long as nobody has asked it to end, too.

    Its workers are listed before it. So if one could act on its SIGTERM before all have it, it would be seen.
    """
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    inner = make_nested()

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    for number in range(30):
        child(f"w{number}", move(inner), unblock)
    child("beats", unblock)
    os.symlink("pid-beats", "pid-main")
    os.symlink("beat-beats", "beat-main")
    Path("ready").touch()
    # Both pending, the lower number comes first: SIGTERM.
    if signal.sigwait(signals) == signal.SIGCHLD:
        Path("restarted").touch()


def slow_to_die() -> None:
    """Acts on SIGTERM only when `die` is there."""

    def answer(*_: object) -> None:
        Path("term-main").touch()
        while not Path("die").exists():
            time.sleep(0.005)
        os._exit(0)

    signal.signal(signal.SIGTERM, answer)
    main_beats()


def heavy() -> None:
    """A process that takes long to tear down, in a cgroup far below."""
    inner = make_nested()

    def hold(name: str) -> None:
        memory = bytearray(1 << 30)
        memory[::4096] = b"x" * len(memory[::4096])
        beat(name)

    child("heavy", move(inner), act=hold)
    main_beats()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
