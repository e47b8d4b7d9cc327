"""The commands by which root lets a plain user start runs; each is exact, for this user on this machine."""

from __future__ import annotations

import os
import pwd
import shlex


def user_name() -> str:
    """The user's name, or its number where the password database has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def lingering() -> str:
    """Start the user's manager now and at each boot (loginctl(1))."""
    return f"as root: loginctl enable-linger {user_name()}"


def delegation(point: str) -> str:
    """Hand the user a cgroup below the mount at `point`, with the shell that called us in it (cgroups(7))."""
    user = user_name()
    own = f"delegated-{user}"
    files = " ".join(f"{own}/cgroup.{name}" for name in ("procs", "threads", "subtree_control"))
    make = f"cd {shlex.quote(point)} && mkdir {own} && chown {user} {own} {files}"
    return f"as root: {make} && echo {os.getppid()} > {own}/cgroup.procs"
