"""Folders of drills that could not clean up (SIGKILL, a power cut): the next drill removes them.

Only where the record in the folder proves that the drill is gone (boot, pid and start), and nothing of its fleet lives.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from dataclasses import asdict

from sandbox.control.status import status
from sandbox.kernel.files import read_bytes
from sandbox.kernel.identity import Identity
from sandbox.kernel.procfs import all_pids, environ
from sandbox.manifest.home import Home

TOKEN = "AGENTBOX_DRILL"
"""The variable that every process of the drill's fleet carries: nobody else's can, for it can't be guessed."""
NAME = "drill.json"
_FOLDER = re.compile(r"agentbox-drill-[0-9a-f]{8}")


def top() -> str:
    """The directory that drills make their folders in."""
    return os.path.realpath(tempfile.gettempdir())


def sign(folder: str, home: Home, token: str) -> None:
    """Leave in `folder` whose it is. Raises OSError."""
    own = Identity.of(os.getpid())
    if own is not None:
        with open(f"{folder}/{NAME}", "w", encoding="utf-8") as file:
            json.dump({**asdict(own), "home": home.path, "token": token}, file)


def keep(folder: str) -> None:
    """No later drill is to remove it."""
    with suppress(OSError):
        os.unlink(f"{folder}/{NAME}")


def marked(token: str) -> list[Identity]:
    """The live processes that carry a drill's token, but for this one."""
    pids = [pid for pid in all_pids() if pid != os.getpid() and (environ(pid) or {}).get(TOKEN) == token]
    found = [one for one in map(Identity.of, pids) if one is not None]
    return [one for one in found if one.alive() is not False]


def remove() -> list[str]:
    """Remove those of this user; returns a line for each that is abandoned and stays. Raises nothing."""
    problems = []
    try:
        names = sorted(filter(_FOLDER.fullmatch, os.listdir(top())))
    except OSError:
        return []
    for name in names:
        folder, run_id = f"{top()}/{name}", name.removeprefix("agentbox-")
        said = _said_of_the_gone(folder)
        if said is None:
            continue
        home, token = said
        if marked(token) or status(home, run_id).proof != "empty":
            problems.append(f"{folder} of a drill that was killed stays: its run may live (agentbox kill {run_id})")
            continue
        shutil.rmtree(folder, ignore_errors=True)
        problems += [f"{folder} could not be removed whole"] if os.path.lexists(folder) else []
    return problems


def _said_of_the_gone(folder: str) -> tuple[Home, str] | None:
    """Home and token of the drill that made `folder`, if that is this user's and the drill is provably gone."""
    try:
        there = os.lstat(folder)
        record = os.lstat(f"{folder}/{NAME}")
        # Nobody else could have put it there, nor anything else into the folder: it was made so.
        if not stat.S_ISDIR(there.st_mode) or stat.S_IMODE(there.st_mode) & 0o077 or there.st_uid != os.geteuid():
            return None
        if not stat.S_ISREG(record.st_mode) or record.st_uid != os.geteuid():
            return None
        said = json.loads(read_bytes(f"{folder}/{NAME}", 8192))
        holder = Identity(str(said["boot_id"]), int(said["pid"]), int(said["start_ticks"]))
        home = str(said["home"])
        if not os.path.isabs(home) or "\0" in home:
            return None
        return (Home(home), str(said["token"])) if holder.alive() is False else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
