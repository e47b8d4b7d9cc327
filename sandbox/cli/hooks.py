"""`agentbox hooks show|install|remove`: the adapters that make a harness pass the gate."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import sys
from typing import Annotated, Any

import typer

from sandbox.cli.arguments import output
from sandbox.errors import AGENTBOX_FAILED, USAGE, AgentboxError, printable
from sandbox.harness.adapters import ADAPTERS, Adapter, merged, on_command_line, without

app = typer.Typer(help="Show, install or remove the hooks of a harness.", no_args_is_help=True)

Harness = Annotated[str, typer.Argument(metavar="HARNESS", help="omp, claude, codex or cursor")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

REMOVE = "remove"


@app.command("show")
def show(harness: Harness) -> None:
    """Print what `run` adds to the harness's command line, and the adapter as `install` writes it."""
    adapter = _adapter(harness)
    command, added, _ = on_command_line([os.fsencode(harness)])
    if added:
        output(f"# agentbox run -- {harness} starts: {' '.join(map(_shown, command))}\n")
    else:
        output(f"# {harness} takes no hooks on its command line\n")
    output(f"# agentbox hooks install {harness} writes to {adapter.path(os.environ)}:\n{adapter.text()}")


@app.command("install")
def install(harness: Harness, yes: Yes = False) -> None:
    """Put the hooks among the user's own: shows what would change, and asks."""
    _change(_adapter(harness), "install", yes)


@app.command("remove")
def remove(harness: Harness, yes: Yes = False) -> None:
    """Take the hooks out again, and nothing else: shows what would change, and asks."""
    _change(_adapter(harness), REMOVE, yes)


def _adapter(name: str) -> Adapter:
    if name not in ADAPTERS:
        raise AgentboxError(f"no harness {name!r} is known", fix=f"one of {', '.join(ADAPTERS)}", code=USAGE)
    return ADAPTERS[name]


def _shown(word: bytes) -> str:
    text = os.fsdecode(word)
    return text if re.fullmatch(r"[\w./=:-]+", text) else "'" + text.replace("'", "'\\''") + "'"


def _change(adapter: Adapter, verb: str, yes: bool) -> None:
    """Show the difference, ask, write. A file that is already as wanted is left alone."""
    path = os.path.realpath(adapter.path(os.environ))
    before = _read(path)
    after = _wanted(adapter, verb, path, before)
    if before == after:
        output(f"unchanged {path}\n")
        return
    lines = difflib.unified_diff(_lines(before), _lines(after), path, path, lineterm="")
    output("".join(f"{printable(line)}\n" for line in lines))
    if not yes and not _agreed(f"{'write' if after is not None else 'delete'} {path}?"):
        raise AgentboxError("nothing was changed", fix="--yes does it without asking", code=USAGE)
    try:
        _write(path, after)
    except OSError as error:
        raise AgentboxError(f"{path} cannot be written: {error.strerror}", code=AGENTBOX_FAILED) from None
    output(f"{'wrote' if after is not None else 'deleted'} {path}\n")


def _wanted(adapter: Adapter, verb: str, path: str, before: str | None) -> str | None:
    """The file's text as it is to be; None: no file."""
    if not adapter.merged:
        if before is not None and not before.startswith("// agentbox's gate"):
            raise AgentboxError(f"{path} exists and is not agentbox's", fix="move it away", code=AGENTBOX_FAILED)
        return None if verb == REMOVE else adapter.text()
    if before is None and verb == REMOVE:
        return None
    theirs = _parsed(path, before or "{}")
    try:
        after = without(theirs) if verb == REMOVE else merged(adapter, theirs)
    except ValueError as error:
        raise AgentboxError(f"{path}: {error}", fix=f"put `agentbox hooks show {adapter.name}` in by hand") from None
    if after == theirs:
        return before
    if verb == REMOVE and not set(after) - {"version"}:
        return None  # nobody's but ours
    end = "" if before and not before.endswith("\n") else "\n"
    return json.dumps(after, indent=_indent(before), ensure_ascii=False) + end


def _parsed(path: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise AgentboxError(f"{path} is not a JSON object", fix="mend it, or put the hooks in by hand (hooks show)")
    return found


def _indent(text: str | None) -> str | int:
    """The file's own indentation, so that a removal gives back what was there."""
    found = re.search(r"^([ \t]+)\S", text or "", re.MULTILINE)
    return found[1] if found else 2


def _lines(text: str | None) -> list[str]:
    return [] if text is None else text.split("\n")


def _agreed(question: str) -> bool:
    if not (sys.stdin and sys.stdin.isatty()):
        return False
    return typer.confirm(question)


def _read(path: str) -> str | None:
    """The file's text, None where there is none. A file that is not a regular one is never replaced."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise AgentboxError(f"{path} is not a regular file", fix="move it away")
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise AgentboxError(f"{path} cannot be read: {error}", fix="see its owner and mode") from None


def _write(path: str, text: str | None) -> None:
    """Replace the file whole, its mode kept. Raises OSError with nothing left of the attempt."""
    if text is None:
        os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o600
    temporary = f"{path}.agentbox.{os.getpid()}"
    try:
        with open(temporary, "x", encoding="utf-8", newline="") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
