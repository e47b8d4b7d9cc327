"""Figures of single processes, through psutil."""

from __future__ import annotations

from sandbox.kernel.files import read_bytes


def memory_of(pid: int, start_ticks: int | None) -> int | None:
    """Resident memory in bytes, or None if it can't be told or `pid` is somebody else by now."""
    import psutil

    from sandbox.kernel.procfs import read_stat

    try:
        resident = int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
    stat = read_stat(pid)
    return resident if stat and stat.start_ticks == start_ticks else None


def cpu_of(pid: int, start_ticks: int | None) -> float | None:
    """Processor time so far in seconds, user and system, or None as for `memory_of`."""
    import psutil

    from sandbox.kernel.procfs import read_stat

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return None
    stat = read_stat(pid)
    return round(float(times.user + times.system), 2) if stat and stat.start_ticks == start_ticks else None


def task_ceiling() -> int | None:
    """How many processes and threads the kernel can hold at a time (proc_sys_kernel(5)); None = could not tell."""
    try:
        return min(int(read_bytes(f"/proc/sys/kernel/{name}")) for name in ("pid_max", "threads-max"))
    except (OSError, ValueError):
        return None
