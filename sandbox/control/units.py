"""The units of `systemd/` filled in for one machine or user, and the crontab lines for where there is no systemd.

Sources: systemd.syntax(7) and systemd.service(5) on quoting, systemd.unit(5) on specifiers, crontab(5) on `%`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sandbox.errors import AgentboxError
from sandbox.manifest.home import Home

TEMPLATES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "units")
UNITS = (
    "agentbox.slice",
    "agentbox-watch.service",
    "agentbox-emergency.path",
    "agentbox-emergency.service",
    "agentbox-reconcile.service",
    "agentbox-reconcile.timer",
)
ENABLED = ("agentbox-watch.service", "agentbox-emergency.path", "agentbox-reconcile.timer")
MARK = "# Written by `agentbox install-units`; put changes into a drop-in: systemctl edit UNIT"
ENGINE = ("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
"""Where the engine of the runs is: the emergency stop must look for it in the same place."""


@dataclass(frozen=True)
class Plan:
    """`command`: how agentbox is started, as words. `environment`: what its processes get, AGENTBOX_HOME included.

    `metrics`: where the reconciler writes its metrics (absolute), or "".
    """

    command: list[str]
    environment: dict[str, str]
    user: bool
    metrics: str = ""

    @property
    def reconcile(self) -> list[str]:
        """The reconciler as it looks when nobody asks: what is only to be known would be told at each look."""
        words = [*self.command, "reconcile", "--min-severity", "warning"]
        return [*words, "--metrics", self.metrics] if self.metrics else words

    @property
    def home(self) -> str:
        return self.environment["AGENTBOX_HOME"]

    @property
    def directory(self) -> str:
        """Where the manager looks for its units (systemd.unit(5), unit file load path)."""
        if not self.user:
            return "/etc/systemd/system"
        config = os.environ.get("XDG_CONFIG_HOME", "")
        return os.path.join(config if os.path.isabs(config) else os.path.expanduser("~/.config"), "systemd/user")


def plan(home: Home, *, user: bool, environ: Mapping[str, str], metrics: str = "") -> Plan:
    """For the agentbox that runs now. Raises AgentboxError where a path can't stand in a unit, or can't be written."""
    command = own_command()
    engine = {name: environ[name] for name in ENGINE if environ.get(name)}
    made = Plan(command, {"AGENTBOX_HOME": home.path, **engine}, user, os.path.abspath(metrics) if metrics else "")
    for text in (*command, *made.environment.values(), made.metrics):
        if not text.isprintable():
            raise AgentboxError(f"{text!r} cannot stand in a unit or crontab", fix="choose a path of printable signs")
    if made.metrics:
        _check_metrics(made.metrics)
    return made


def _check_metrics(path: str) -> None:
    """Raises AgentboxError where the file can't be replaced: better now than at each look, when nobody sees it."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise AgentboxError(f"--metrics {path}: there is no directory {folder}", fix=f"mkdir -p {shlex.quote(folder)}")
    if os.path.isdir(path):
        raise AgentboxError(f"--metrics {path} is a directory", fix=f"name a file in it: {path}/agentbox.prom")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise AgentboxError(f"--metrics {path}: {folder} may not be written", fix="choose a directory of yours")


def own_command() -> list[str]:
    """The words that start this same agentbox from anywhere: its script, or the interpreter and the module."""
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == "agentbox" and os.access(script, os.X_OK):
        return [script]
    tree = os.path.dirname(os.path.dirname(TEMPLATES))
    return ["/usr/bin/env", f"PYTHONPATH={tree}", sys.executable, "-m", "sandbox.cli.main"]


def units(made: Plan) -> dict[str, str]:
    """The text of each unit, by its name. Raises AgentboxError where the templates are missing."""
    hardening = _template("hardening.conf") + ("" if made.user else _template("hardening-system.conf"))
    words = {
        "@HARDENING@": hardening.strip(),
        "@AGENTBOX@": _command(made.command),
        "@RECONCILE@": _command(made.reconcile),
        "@METRICS_DIRECTORY@": _writable(made),
        "@ENVIRONMENT@": " ".join(_word(f"{name}={value}") for name, value in made.environment.items()),
        "@EMERGENCY_STOP@": Home(made.home).emergency_stop.replace("%", "%%"),
        "@HOME@": _word(made.home)[1:-1],
        "@WANTED_BY@": "default.target" if made.user else "multi-user.target",
        **_network(made.environment.get("DOCKER_HOST", "")),
    }
    return {name: f"{MARK}\n{_fill(_template(name), words)}" for name in UNITS}


def _network(engine: str) -> dict[str, str]:
    """Unix sockets, and the kernel's own tables of them; more only for an engine that is elsewhere."""
    local = engine in ("", None) or engine.startswith("unix:")
    return {
        "@FAMILIES@": "AF_UNIX AF_NETLINK" + ("" if local else " AF_INET AF_INET6"),
        "@IP_DENY@": "IPAddressDeny=any" if local else "# an engine elsewhere is asked: no IPAddressDeny",
    }


def _fill(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(name, value)
    if left := re.search(r"@[A-Z_]+@", text):
        raise AgentboxError(f"a unit's template has an unknown word {left[0]}", fix="install agentbox again")
    return text


def _command(words: Iterable[str]) -> str:
    return " ".join(_word(word).replace("$", "$$") for word in words)


def _writable(made: Plan) -> str:
    """What opens the directory of the metrics to a service that is kept out of most of them."""
    if not made.metrics or made.user:
        return "# no directory of metrics to be opened"
    return f'ReadWritePaths="-{_word(os.path.dirname(made.metrics))[1:-1]}"'


def _word(text: str) -> str:
    """Quoted for ExecStart= and Environment=, specifiers undone (systemd.syntax(7), Quoting)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _template(name: str) -> str:
    try:
        with open(os.path.join(TEMPLATES, name), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise AgentboxError(f"{TEMPLATES}/{name}: {error.strerror}", fix="install agentbox again") from None


def crontab(made: Plan) -> str:
    """Lines that need nothing of cron's environment; what they print is mail, so they print only what matters."""
    assignments = " ".join(f"{name}={shlex.quote(value)}" for name, value in made.environment.items())
    lines = [
        "# agentbox: within a minute, end all runs where EMERGENCY_STOP exists; every five, tell what should not live",
        f"* * * * * {assignments} {shlex.join(made.command)} watch --once",
        f'*/5 * * * * found=$({assignments} {shlex.join(made.reconcile)} 2>&1) || echo "$found"',
    ]
    return "".join(line.replace("%", "\\%") + "\n" for line in lines)
