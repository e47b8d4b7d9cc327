"""Is the state directory fit for its purpose?"""

from __future__ import annotations

import os
from typing import Any

from sandbox.control import orders
from sandbox.errors import AgentboxError
from sandbox.kernel.mounts import filesystem_of
from sandbox.manifest.home import Home

NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "ceph", "glusterfs", "afs")


def home_facts(home: Home) -> dict[str, Any]:
    """`ok`: runs can be recorded there; `what`: where and on which file system; `warnings`: lines for people."""
    warnings = []
    try:
        home.ensure()
    except AgentboxError as error:
        return {"ok": False, "what": str(error), "warnings": []}
    kind = filesystem_of(home.path) or "unknown file system"
    if kind.split(".")[0] in NETWORK:
        warnings.append(f"{home.path} is on {kind}, where locks may not hold: set AGENTBOX_HOME to a local directory")
    if kind in ("tmpfs", "ramfs"):
        warnings.append(f"{home.path} is on {kind}: records and the emergency stop do not survive a reboot")
    if why := orders.emergency_stop(home.emergency_stop):
        warnings.append(f"{why}: nothing starts until `agentbox estop --lift`")
    if os.geteuid() != 0 and os.path.isdir("/run/systemd/system") and not _lingers():
        warnings.append("runs end when you log out: loginctl enable-linger keeps them")
    return {"ok": True, "what": f"{home.path} on {kind}", "warnings": warnings}


def _lingers() -> bool:
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return os.path.exists(f"/var/lib/systemd/linger/{name}")
