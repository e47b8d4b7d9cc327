"""`agentbox install-units`: systemd units (or crontab lines) that watch when nobody looks."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from sandbox.cli.arguments import output
from sandbox.control.units import ENABLED, MARK, Plan, crontab, plan, units
from sandbox.errors import AGENTBOX_FAILED, USAGE, AgentboxError
from sandbox.manifest.home import Home


def install_units(
    user: Annotated[bool, typer.Option("--user", help="For your own systemd manager, not the system's.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the units, write nothing.")] = False,
    cron: Annotated[bool, typer.Option("--cron", help="Print crontab lines instead, write nothing.")] = False,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="FILE", help="Where the reconciler writes Prometheus text at each look.")
    ] = "",
) -> None:
    """Write the units for this agentbox and this AGENTBOX_HOME, and say how to start them."""
    home = Home.locate()
    made = plan(home, user=user, environ=os.environ, metrics=metrics)
    if cron:
        output(crontab(made))
        return
    texts = units(made)
    if dry_run:
        output("\n".join(f"# {made.directory}/{name}\n{text}" for name, text in texts.items()))
        return
    _check(made)
    home.ensure()
    _write_all(made, texts)


def _check(made: Plan) -> None:
    if not made.user and os.geteuid() != 0:
        raise AgentboxError("the system's units are root's to write", fix="use --user, or sudo", code=USAGE)


def _write_all(made: Plan, texts: dict[str, str]) -> None:
    """All or a clear error; a file that is not ours is never replaced."""
    paths = {f"{made.directory}/{name}": text for name, text in texts.items()}
    for path in paths:
        before = _read(path)
        if before is not None and not before.startswith(MARK):
            raise AgentboxError(f"{path} exists and is not agentbox's", fix="move it away", code=AGENTBOX_FAILED)
    try:
        os.makedirs(made.directory, exist_ok=True)
        for path, text in paths.items():
            changed = _read(path) != text
            if changed:
                _replace(path, text)
            output(f"{'wrote' if changed else 'unchanged'} {path}\n")
    except OSError as error:
        what = f"{error.filename or made.directory} cannot be written: {error.strerror}"
        raise AgentboxError(what, fix="see its owner and mode", code=AGENTBOX_FAILED) from None
    systemctl = "systemctl --user" if made.user else "systemctl"
    output(f"start them with: {systemctl} daemon-reload && {systemctl} enable --now {' '.join(ENABLED)}\n")
    if made.user:
        output("they end when you log out, unless: loginctl enable-linger\n")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentboxError(f"{path}: {error.strerror}", fix="move it away", code=AGENTBOX_FAILED) from None


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
        os.rename(temporary, path)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
