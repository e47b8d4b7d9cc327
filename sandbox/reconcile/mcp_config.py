"""The MCP servers that the known harnesses are configured to start: name, command and the file that says so.

| harness     | files of a project, then of a user | source |
| ----------- | ---------------------------------- | ------ |
| any         | .mcp.json, mcp.json                | the harnesses below |
| omp         | .omp/mcp.json, .omp/.mcp.json; the same in ~/.omp/agent and ~/.omp/profiles/*/agent | [1] |
| Claude Code | .mcp.json; ~/.claude.json, also `projects.<path>.mcpServers` in it | [2] |
| Codex       | .codex/config.toml; ~/.codex/config.toml: `[mcp_servers.<name>]` | [3] |
| Cursor      | .cursor/mcp.json; ~/.cursor/mcp.json | [4] |
| VS Code     | .vscode/mcp.json; ~/.config/Code/User/mcp.json: `servers`; ~/.copilot/mcp-config.json | [5] |

JSON with the servers under `mcpServers`, where nothing else is said.

[1] https://raw.githubusercontent.com/can1357/oh-my-pi/main/docs/mcp-config.md
[2] https://code.claude.com/docs/en/mcp
[3] https://developers.openai.com/codex/mcp
[4] https://cursor.com/docs/mcp
[5] https://code.visualstudio.com/docs/copilot/reference/mcp-configuration

Only servers with a `command` are started as processes; those with a `url` are passed over. A file that can't be
read or makes no sense gives no servers: it names processes, it proves nothing.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sandbox.manifest.lines import open_regular

SIZE_MAX = 8 << 20
LEVELS_UP = 8
"""How far above the working directory a project's files are looked for."""

PROJECT_FILES = (
    (".mcp.json", "project"),
    ("mcp.json", "project"),
    (".omp/mcp.json", "omp"),
    (".omp/.mcp.json", "omp"),
    (".codex/config.toml", "codex"),
    (".cursor/mcp.json", "cursor"),
    (".vscode/mcp.json", "vscode"),
)
USER_FILES = (
    (".omp/agent/mcp.json", "omp"),
    (".omp/agent/.mcp.json", "omp"),
    (".omp/profiles/*/agent/mcp.json", "omp"),
    (".omp/profiles/*/agent/.mcp.json", "omp"),
    (".claude.json", "claude"),
    (".codex/config.toml", "codex"),
    (".cursor/mcp.json", "cursor"),
    (".config/Code/User/mcp.json", "vscode"),
    (".copilot/mcp-config.json", "vscode"),
)
# What is not closed goes to the end, and nothing is tried again: a file of nothing but openings takes no longer.
# No possessive quantifiers: before Python 3.11.5 they match wrongly around alternatives.
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(workspaceFolder|userHome)\}")


@dataclass(frozen=True)
class Configured:
    """A stdio server of a configuration. `argv`: command and arguments; `folder`: what relative paths are in."""

    name: str
    argv: tuple[str, ...]
    source: str
    harness: str
    folder: str


class Configurations:
    """Reads each file once, however many runs ask for it."""

    def __init__(self, homes: Iterable[str]) -> None:
        self._files: dict[str, tuple[Configured, ...]] = {}
        self._folders: dict[str, list[Configured]] = {}
        self._user = [found for home in dict.fromkeys(homes) for found in self._of_user(home)]

    def for_folder(self, folder: str | None) -> list[Configured]:
        """The servers that a harness started in `folder` would know, the nearest first."""
        if not folder:
            return self._user
        if folder not in self._folders:
            self._folders[folder] = [*self._of_project(folder), *self._user]
        return self._folders[folder]

    def _of_project(self, folder: str) -> Iterator[Configured]:
        where = os.path.normpath(folder)
        for _ in range(LEVELS_UP):
            for name, harness in PROJECT_FILES:
                yield from self._read(os.path.join(where, name), harness, where)
            if where == os.path.dirname(where) or os.path.exists(os.path.join(where, ".git")):
                return
            where = os.path.dirname(where)

    def _of_user(self, home: str) -> Iterator[Configured]:
        for pattern, harness in USER_FILES:
            path = os.path.join(home, pattern)
            for found in sorted(glob.glob(path)) if "*" in pattern else [path]:
                yield from self._read(found, harness, home)

    def _read(self, path: str, harness: str, folder: str) -> tuple[Configured, ...]:
        if path not in self._files:
            self._files[path] = tuple(read_file(path, harness, folder))
        return self._files[path]


def read_file(path: str, harness: str, folder: str) -> list[Configured]:
    """The servers that one file names; none if there is no such file or it makes no sense."""
    try:
        fd = open_regular(path, os.O_RDONLY)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        text = file.read(SIZE_MAX + 1).decode("utf-8", "replace")
    if len(text) > SIZE_MAX:
        return []
    try:
        value = _toml(text) if path.endswith(".toml") else _json(text)
    except (ValueError, RecursionError):
        return []
    found = []
    for names in _tables(value, harness):
        for name, entry in names.items():
            argv = _argv(entry, folder)
            if argv:
                found.append(Configured(str(name), argv, path, harness, folder))
    return found


def _tables(value: Any, harness: str) -> Iterator[dict[str, Any]]:
    if not isinstance(value, dict):
        return
    for key in ("mcpServers", "mcp_servers", "servers"):
        if isinstance(value.get(key), dict):
            yield value[key]
    projects = value.get("projects")
    if harness == "claude" and isinstance(projects, dict):
        for project in projects.values():
            if isinstance(project, dict) and isinstance(project.get("mcpServers"), dict):
                yield project["mcpServers"]


def _argv(entry: Any, folder: str) -> tuple[str, ...]:
    if not isinstance(entry, dict) or not isinstance(entry.get("command"), str) or not entry["command"]:
        return ()
    args = entry.get("args")
    words = [entry["command"], *(args if isinstance(args, list) else ())]
    known = {"workspaceFolder": folder, "userHome": os.path.expanduser("~")}
    return tuple(_VARIABLE.sub(lambda m: known[m[1]], word) for word in words if isinstance(word, str))


def _json(text: str) -> Any:
    """JSON, or JSON with comments and trailing commas as VS Code writes it."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    plain = _COMMENT.sub(lambda m: m[0] if m[0].startswith('"') else " ", text)
    return json.loads(_TRAILING_COMMA.sub(lambda m: m[0] if m[0].startswith('"') else "", plain))


def _toml(text: str) -> Any:
    import tomllib

    return tomllib.loads(text)
