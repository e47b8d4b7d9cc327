"""Recognising an MCP server by its command line: by the configuration that started it, or by its shape.

What counts is the program, behind interpreters (`node`, `python -m`), runners (`npx`, `uvx`, `docker run`) and
shells (`sh -c`): never its arguments, so that an editor on `mcp.json` is none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandbox.reconcile.mcp_config import Configured

_INTERPRETER = re.compile(r"(?:node|nodejs|bun|deno|tsx|ts-node|python[\d.]*|pypy[\d.]*|ruby|perl|java|dotnet)")
_SHELL = re.compile(r"-?(?:ba|da|z|k|a|fi)?sh|busybox")
_RUNNER = {
    "npx": 0, "bunx": 0, "uvx": 0, "pnpx": 0, "env": 0, "nice": 0, "setsid": 0, "nohup": 0, "exec": 0, "timeout": 1,
}  # fmt: skip
"""Commands that run another; how many words of their own stand before it."""
_TWO_WORDS = {
    ("npm", "exec"), ("npm", "x"), ("pnpm", "dlx"), ("pnpm", "exec"), ("yarn", "dlx"), ("bun", "x"), ("pipx", "run"),
    ("uv", "run"), ("deno", "run"), ("poetry", "run"), ("docker", "run"), ("podman", "run"),
}  # fmt: skip
_TAKES_VALUE = frozenset((
    "-p", "--package", "--from", "--with", "--python", "-w", "--workspace", "-e", "--env", "-v", "--volume", "--mount",
    "--name", "--network", "-u", "--user", "--directory", "--project", "--env-file", "--entrypoint", "-r", "--require",
    "--import", "--loader", "-W", "-X", "-S", "--allow-net",
))  # fmt: skip
_PREPARING = frozenset(("cd", "export", "set", "source", ".", "umask", "ulimit", "true", ":"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SCRIPT = re.compile(r"\.(?:[cm]?[jt]s|py|rb)$")
_NAME = re.compile(r"(?:^|[^a-z0-9])mcp(?:$|[^a-z0-9])|modelcontextprotocol")
_NOT_A_PROGRAM = re.compile(r"\.(?:json[c5]?|toml|ya?ml|md|txt|log|lock|pid|sock|db|sqlite)$")
_SERVING = {("claude", "mcp"): "serve", ("codex", "mcp"): "serve", ("codex", "mcp-server"): "", ("mcp", "run"): ""}


@dataclass(frozen=True)
class Recognised:
    """`name`: of the server; `by`: the configuration file, or "command shape"; `harness`: whose file, or ""."""

    name: str
    by: str
    harness: str = ""


def words(raw: bytes) -> list[str]:
    """A raw command line as words. A process that wrote its title over it shows one with blanks (npm does)."""
    parts = [os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")]
    return parts[0].split() if len(parts) == 1 and " " in parts[0] else parts


def program(argv: Sequence[str]) -> str:
    """The word that says what really runs: a path, a package, a module or an image; "" if there is none."""
    return (_program(argv) or [""])[0]


def _program(argv: Sequence[str]) -> list[str]:
    """That word and its arguments."""
    rest = list(argv)
    for _ in range(8):
        if not rest:
            return []
        name = os.path.basename(rest[0])
        if _SHELL.fullmatch(name):
            rest = _shell_command(rest[1:])
        elif len(rest) > 1 and (name, rest[1]) in _TWO_WORDS:
            rest = _after_options(rest[2:])
        elif name == "uv" and rest[1:2] == ["tool"]:
            rest = _after_options(rest[3:])
        elif name in _RUNNER:
            rest = _after_options(rest[1:])[_RUNNER[name] :]
            while rest and _ASSIGNMENT.match(rest[0]):
                rest = rest[1:]
        elif _INTERPRETER.fullmatch(name):
            return _script(rest[1:])
        else:
            return rest
    return []


def looks_like_server(argv: Sequence[str]) -> str:
    """The name of the server that a command line of the known shapes starts, or ""."""
    if len(argv) > 1 and (wanted := _SERVING.get((os.path.basename(argv[0]), argv[1]))) is not None:
        return os.path.basename(argv[0]) if wanted in ("", *argv[2:3]) else ""
    target = program(argv)
    if not target or _NOT_A_PROGRAM.search(target.lower()):
        return ""
    parts = [part for part in target.lower().split("/") if part]
    # The last three parts: the file itself and the package that it is in, not the project's folder above them.
    named = [part for part in parts[-1:] if _NAME.search(part)]
    if "node_modules" in parts:
        named += [part for part in parts[len(parts) - parts[::-1].index("node_modules") :][:2] if _NAME.search(part)]
    elif target.startswith("@"):
        named += [part for part in parts if _NAME.search(part)]
    elif len(parts) > 1 and not parts[-1].endswith((".py", ".js", ".ts", ".mjs", ".cjs")):
        named += [part for part in parts[-2:-1] if part == "mcp"]  # an image such as mcp/time
    return plain_name(target) if named else ""


def recognise(argv: Sequence[str], cwd: str | None, configured: Iterable[Configured]) -> Recognised | None:
    """By configuration first, for its name is the one that a person knows; then by shape."""
    target, *arguments = _program(argv) or [""]
    if not target:
        return None
    same = [one for one in configured if _same(argv, target, cwd, one)]
    for one in sorted(same, key=lambda found: _program(found.argv)[1:] != arguments):
        return Recognised(one.name, one.source, one.harness)
    name = looks_like_server(argv)
    return Recognised(name, "command shape") if name else None


def plain_name(target: str) -> str:
    """`@scope/server-time@1.2`, `mcp_server_time`, `/x/bin/mcp-server-time` and `mcp-server-time.js` as one name."""
    name = target.rstrip("/")
    parts = name.split("/")
    if "node_modules" in parts:
        after = parts[len(parts) - parts[::-1].index("node_modules") :]
        name = after[1] if after[0] in (".bin",) or after[0].startswith("@") else after[0]
    else:
        name = parts[-1]
    name = re.sub(r"(?<=.)@[\w.^~*-]*$|==.*$|:[\w.-]*$", "", name)
    name = re.sub(r"\.(?:[cm]?[jt]s|py|rb|jar|exe|cmd)$", "", name).replace("_", "-").lower()
    name = re.sub(r"^mcp-(?=server)", "", name) or name
    scope = re.search(r"@([\w.-]+)/[^/]*(?:/|$)", target)
    return f"{scope[1]}-{name}" if scope and name in ("mcp", "server", "mcp-server") else name


def _same(argv: Sequence[str], target: str, cwd: str | None, one: Configured) -> bool:
    """Is `argv`, whose program is `target`, what the configuration starts, or what its runner made of it?"""
    wanted = program(one.argv)
    if not wanted:
        return False
    if tuple(argv[1:]) == one.argv[1:] and _base(argv[0]) == _base(one.argv[0]):
        return True
    if _SCRIPT.search(wanted) or ("/" in wanted and not wanted.startswith("@")):
        return _resolved(wanted, one.folder) == _resolved(target, cwd or one.folder)
    if plain_name(wanted) != plain_name(target):
        return False
    return wanted != one.argv[0] or _base(target) == _base(wanted)


def _resolved(path: str, folder: str) -> str:
    return os.path.realpath(os.path.join(folder, os.path.expanduser(path)))


def _base(word: str) -> str:
    return os.path.basename(word)


def _shell_command(rest: list[str]) -> list[str]:
    """What `sh -c TEXT` or `sh SCRIPT` runs. Only a text of one simple command is looked into."""
    for at, word in enumerate(rest):
        if re.fullmatch(r"-[a-z]*c", word):
            text = rest[at + 1] if at + 1 < len(rest) else ""
            return _simple(text)
        if not word.startswith("-"):
            return rest[at:]
    return []


def _simple(text: str) -> list[str]:
    """The first command of a shell line that is more than a preparation."""
    import shlex

    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        found = list(lexer)
    except ValueError:
        return text.split()
    command: list[str] = []
    for word in [*found, ";"]:
        if word and not word.strip(";&|"):
            if command and command[0] not in _PREPARING:
                break
            command = []
        else:
            command.append(word)
    return command[1:] if command[:1] == ["exec"] else command


def _after_options(rest: list[str]) -> list[str]:
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        if rest[at] == "--":
            return rest[at + 1 :]
        at += 2 if rest[at] in _TAKES_VALUE else 1
    return rest[at:]


def _script(rest: list[str]) -> list[str]:
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        if rest[at] in ("-m", "-jar"):
            return rest[at + 1 :]
        if rest[at] in ("-c", "-e", "--eval", "-p", "--print", "-"):
            return []
        at += 2 if rest[at] in _TAKES_VALUE else 1
    if at < len(rest) and rest[at] == "run":
        at += 1
    return rest[at:]
