"""Which harness a command is, what `run` adds to its command line, and where `hooks install` puts its adapter.

The adapters are files to be read: omp/agentbox.ts, claude/settings.json, codex/hooks.json, cursor/hooks.json, where
`@HOOK@` stands for the command that runs hook.py. What each harness documents of them: docs/harness-*.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
HOOK = shlex.join([sys.executable, "-I", "-S", f"{HERE}/hook.py"])
OURS = "sandbox/harness/hook.py"
"""What tells a hook of ours from others, whichever installation has put it there."""
OMP_GATE = 'new URL("../gate.sh", import.meta.url).pathname'


@dataclass(frozen=True)
class Adapter:
    """`file`: of this folder. `home`: the variable that names the harness's folder, and where it is without one.
    `target`: the file in that folder. `merged`: it is the user's, and our hooks are put among theirs."""

    name: str
    file: str
    home: tuple[str, str]
    target: str
    merged: bool = True

    def path(self, environ: Mapping[str, str]) -> str:
        """Where `hooks install` puts it, for the user of `environ`."""
        variable, default = self.home
        return os.path.join(environ.get(variable) or os.path.expanduser(default), self.target)

    def text(self) -> str:
        """The adapter as it would stand in a file of its own."""
        if self.merged:
            return json.dumps(self.hooks(), indent=2) + "\n"
        with open(f"{HERE}/{self.file}", encoding="utf-8") as file:
            text = file.read()
        # Away from here it does not find the gate beside itself.
        return text.replace(OMP_GATE, json.dumps(f"{HERE}/gate.sh"))

    def hooks(self) -> dict[str, Any]:
        """The adapter's JSON, with the command of this installation."""
        with open(f"{HERE}/{self.file}", encoding="utf-8") as file:
            found: dict[str, Any] = _filled(json.load(file))
        return found


ADAPTERS = {
    one.name: one
    for one in (
        Adapter("omp", "omp/agentbox.ts", ("PI_CODING_AGENT_DIR", "~/.omp/agent"), "extensions/agentbox.ts", False),
        Adapter("claude", "claude/settings.json", ("CLAUDE_CONFIG_DIR", "~/.claude"), "settings.json"),
        Adapter("codex", "codex/hooks.json", ("CODEX_HOME", "~/.codex"), "hooks.json"),
        Adapter("cursor", "cursor/hooks.json", ("", "~/.cursor"), "hooks.json"),
    )
}


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one) for one in value]
    return value.replace("@HOOK@", HOOK) if isinstance(value, str) else value


def on_command_line(argv: Sequence[bytes]) -> tuple[list[bytes], str | None, str]:
    """What to start instead of `argv`: with the adapter added if it is a harness that takes one there.

    Returns the command line, the harness's name (None: nothing added), and what a person should know, or "".
    A command of the harness that starts no agent is left as it is.
    """
    name = os.fsdecode(os.path.basename(argv[0]))
    words = [os.fsdecode(word) for word in argv[1:]]
    given = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    if name == "omp":
        added, apart = ["-e", f"{HERE}/omp/agentbox.ts"], "--trusted-extension"
    elif name == "claude":
        added, apart = ["--settings", json.dumps(ADAPTERS["claude"].hooks())], "--settings"
    elif name == "codex":
        return [argv[0], *map(os.fsencode, _codex_options()), *argv[1:]], name, _codex_trust()
    else:
        return list(argv), None, ""
    at = 2 if name == "omp" and words[:1] in (["launch"], ["acp"]) else 1
    if at == 1 and words and re.fullmatch("[a-z][a-z0-9-]*", words[0]):
        return list(argv), None, ""  # a subcommand that starts no agent, such as `update`
    if apart in given:
        return list(argv), None, f"{name}'s {apart} leaves no room for agentbox's hooks: it has no gate"
    return [*argv[:at], *map(os.fsencode, added), *argv[at:]], name, ""


def _codex_options() -> list[str]:
    """`-c hooks.EVENT=…`: a layer of configuration of this invocation alone, beside the user's own hooks."""
    options = []
    for event, groups in ADAPTERS["codex"].hooks()["hooks"].items():
        options += ["-c", f"hooks.{event}={_toml(groups)}"]
    return options


def _codex_trust() -> str:
    """Codex skips a hook, without a word, until a person has said that they trust it; it keeps that by this key."""
    try:
        with open(f"{os.path.dirname(ADAPTERS['codex'].path(os.environ))}/config.toml", encoding="utf-8") as file:
            known = "/<session-flags>/config.toml:pre_tool_use:" in file.read()
    except (OSError, UnicodeDecodeError):
        known = False
    return "" if known else "codex skips agentbox's hooks until you trust them: say /hooks in codex, once"


def _toml(value: Any) -> str:
    """An inline TOML value; its basic strings are JSON's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def merged(adapter: Adapter, theirs: dict[str, Any]) -> dict[str, Any]:
    """The user's configuration with our hooks after their own, once; raises ValueError if it is not of that shape."""
    result, wanted = without(theirs), adapter.hooks()
    if not result:
        return wanted
    hooks = result.setdefault("hooks", {})
    for event, entries in wanted["hooks"].items():
        hooks[event] = [*hooks.get(event, []), *entries]
    for key, value in wanted.items():
        result.setdefault(key, value)
    return theirs if _sorted(theirs) == _sorted(result) else result


def _sorted(config: dict[str, Any]) -> dict[str, Any]:
    """To compare: in which order hooks stand makes no difference, for they run at the same time."""
    hooks = {event: sorted(map(json.dumps, entries)) for event, entries in config.get("hooks", {}).items()}
    return {**config, "hooks": hooks}


def without(theirs: dict[str, Any]) -> dict[str, Any]:
    """The user's configuration without our hooks, whichever installation they are of; nothing else changed."""
    hooks = theirs.get("hooks", {})
    if not isinstance(hooks, dict) or not all(isinstance(entries, list) for entries in hooks.values()):
        raise ValueError("its hooks have an unknown form")
    kept = {}
    for event, entries in hooks.items():
        rest = [entry for entry in map(_not_ours, entries) if entry is not None]
        if rest or not entries:
            kept[event] = rest
    result = {**theirs, "hooks": kept}
    if "hooks" not in theirs or (hooks and not kept):
        del result["hooks"]
    return result


def _not_ours(entry: Any) -> Any:
    """A hook, or a group of hooks, as it is without ours; None if nothing is left of it."""
    inner = entry.get("hooks") if isinstance(entry, dict) else None
    if isinstance(inner, list):
        rest = [one for one in inner if OURS not in json.dumps(one)]
        return entry if rest == inner else {**entry, "hooks": rest} if rest else None
    return None if OURS in json.dumps(entry) else entry
