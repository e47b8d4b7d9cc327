"""How MCP servers are recognised: shapes of command lines, the harnesses' files, and the two together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.reconcile.mcp import looks_like_server, plain_name, program, recognise, words
from sandbox.reconcile.mcp_config import Configurations, Configured, read_file

SHAPES = [
    ("npx -y @modelcontextprotocol/server-memory", "server-memory"),
    ("npm exec @modelcontextprotocol/server-memory@1.2.3", "server-memory"),
    ("node /home/u/.npm/_npx/a1/node_modules/.bin/mcp-server-memory", "server-memory"),
    ("node /p/node_modules/@modelcontextprotocol/server-everything/dist/index.js stdio", "server-everything"),
    ("uvx mcp-server-time --local-timezone=UTC", "server-time"),
    ("uv tool run --from x mcp-server-time", "server-time"),
    ("uv run --directory /x mcp-server-fetch", "server-fetch"),
    ("/x/bin/python3.11 /x/bin/mcp-server-time", "server-time"),
    ("python -m mcp_server_git --repository /r", "server-git"),
    ("python3 mcp_server.py", "server"),
    ("bunx some-mcp", "some-mcp"),
    ("npx @playwright/mcp@latest --headless", "playwright-mcp"),
    ("deno run -A jsr-mcp-server.ts", "jsr-mcp-server"),
    ("docker run -i --rm -e TOKEN mcp/github", "github"),
    ("env A=b mcp-server-git", "server-git"),
    ("sh -c mcp-server-git", "server-git"),
    ("codex mcp-server", "codex"),
    ("claude mcp serve", "claude"),
]
NO_SERVERS = [
    "vim .mcp.json",
    "cat /var/log/mcp.log",
    "grep -r mcp-server .",
    "tail -f mcp-server-time.log",
    "node /home/u/mcp-project/node_modules/vite/bin/vite.js",
    "python /home/u/mcp-tools/train.py",
    "sleep 900",
    "claude mcp list",
    "python -c import mcp",
    "bash",
    "git clone https://example.org/mcp-server",
]


@pytest.mark.parametrize(("line", "name"), SHAPES)
def test_shape_of_a_server(line: str, name: str) -> None:
    argv = line.split()
    if argv[:2] == ["sh", "-c"]:
        argv = ["sh", "-c", " ".join(argv[2:])]
    assert looks_like_server(argv) == name


@pytest.mark.parametrize("line", NO_SERVERS)
def test_shape_of_something_else(line: str) -> None:
    assert looks_like_server(line.split()) == ""


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("cd /x && npx -y foo-mcp; true", "foo-mcp"),
        ("exec node server.js", "server.js"),
        ("FOO=1 x", "FOO=1"),
        ("a 'b", "a"),
        ("", ""),
    ],
)
def test_program_of_a_shell_line(text: str, target: str) -> None:
    assert program(["sh", "-c", text]) == target


def test_words_of_a_title_that_was_written_over() -> None:
    assert words(b"npm exec @x/y\0") == ["npm", "exec", "@x/y"]
    assert words(b"node\0a b.js\0") == ["node", "a b.js"]
    assert words(b"\xff\0") == ["\udcff"]


def test_one_name_for_all_spellings() -> None:
    for spelling in ("@s/server-time@1.2", "mcp_server_time", "/x/bin/mcp-server-time", "mcp-server-time.js"):
        assert plain_name(spelling) == "server-time"


FILES = {
    ".mcp.json": ('{"mcpServers": {"a": {"command": "npx", "args": ["-y", "x"]}}}', "project"),
    ".omp/mcp.json": ('{"mcpServers": {"a": {"type": "stdio", "command": "npx", "args": ["-y", "x"]}}}', "omp"),
    ".cursor/mcp.json": ('{"mcpServers": {"a": {"command": "npx", "args": ["-y", "x"], "env": {"K": "v"}}}}', "cursor"),
    ".vscode/mcp.json": (
        '{\n// servers\n"servers": {"a": {"command": "npx", "args": ["-y", "x",], /* "b" */ }},\n"inputs": []}',
        "vscode",
    ),
    ".codex/config.toml": ('[mcp_servers.a]\ncommand = "npx"\nargs = ["-y", "x"]\n', "codex"),
}


@pytest.mark.parametrize("name", FILES)
def test_file_of_a_project(name: str, tmp_path: Path) -> None:
    path, (text, harness) = tmp_path / name, FILES[name]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    deep = tmp_path / "src" / "deep"
    deep.mkdir(parents=True)
    for folder in (tmp_path, deep):
        (found,) = Configurations([]).for_folder(str(folder))
        assert (found.name, found.argv, found.harness) == ("a", ("npx", "-y", "x"), harness)
        assert found.source == str(path)


def test_the_file_of_another_project_is_not_read(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text(FILES[".mcp.json"][0])
    inner = tmp_path / "inner"
    (inner / ".git").mkdir(parents=True)
    assert Configurations([]).for_folder(str(inner)) == []


def test_files_of_a_user(tmp_path: Path) -> None:
    entry = {"mcpServers": {"a": {"command": "a-mcp"}}}
    project = {"projects": {"/p": {"mcpServers": {"b": {"command": "b-mcp"}}}}}
    for name, value in {
        ".omp/agent/mcp.json": entry,
        ".omp/profiles/x/agent/mcp.json": entry,
        ".claude.json": {**entry, **project},
        ".config/Code/User/mcp.json": {"servers": entry["mcpServers"]},
        ".copilot/mcp-config.json": entry,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(value))
    found = Configurations([str(tmp_path)]).for_folder(None)
    assert [one.harness for one in found] == ["omp", "omp", "claude", "claude", "vscode", "vscode"]
    assert {one.argv for one in found} == {("a-mcp",), ("b-mcp",)}


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[]",
            "null",
            '{"mcpServers": 3}',
            '{"mcpServers": {"a": {"url": "https://x"}}}',
            "[" * 100000,
            "\xff",
        ),
        '{"mcpServers": {"a": {"command": 3}, "b": {"command": ""}, "c": null}}',
        '{"projects": {"p": 1}}',
    ],
)
def test_file_that_names_no_server(text: str, tmp_path: Path) -> None:
    for name in ("mcp.json", "config.toml"):
        (tmp_path / name).write_text(text, encoding="latin-1")
        assert read_file(str(tmp_path / name), "claude", str(tmp_path)) == []


def test_file_that_is_none(tmp_path: Path) -> None:
    """A directory, a FIFO, a link: nothing hangs."""
    import os

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    for name in ("fifo", "link", "none", "."):
        assert read_file(str(tmp_path / name), "project", str(tmp_path)) == []


def configured(*argv: str, name: str = "it", folder: str = "/p") -> Configured:
    return Configured(name, argv, "/p/.mcp.json", "project", folder)


@pytest.mark.parametrize(
    ("argv", "entry"),
    [
        (["node", "/p/dist/index.js"], configured("node", "dist/index.js")),
        (["node", "/p/dist/index.js", "--stdio"], configured("node", "/p/dist/index.js")),
        (["node", "/n/node_modules/.bin/mcp-server-memory"], configured("npx", "-y", "@x/server-memory@latest")),
        (["npm", "exec", "@x/thing"], configured("npx", "@x/thing")),
        (["/v/bin/python", "/v/bin/thing-server"], configured("thing-server", "--flag")),
        (["python3.11", "-m", "thing"], configured("python", "-m", "thing")),
        (["sh", "-c", "exec thing"], configured("sh", "-c", "exec thing")),
        (["docker", "run", "-i", "img"], configured("docker", "run", "-i", "img")),
    ],
)
def test_process_of_a_configured_server(argv: list[str], entry: Configured) -> None:
    found = recognise(argv, "/p", [entry])
    assert found is not None and (found.name, found.by, found.harness) == ("it", "/p/.mcp.json", "project")


@pytest.mark.parametrize(
    ("argv", "entry"),
    [
        (["node", "/other/dist/index.js"], configured("node", "dist/index.js")),
        (["node", "index.js"], configured("node", "dist/index.js")),
        (["node"], configured("node")),
        (["sh"], configured("sh")),
        (["/v/bin/thing-other"], configured("thing-server")),
        (["python", "-m", "other"], configured("python", "-m", "thing")),
    ],
)
def test_process_of_no_configured_server(argv: list[str], entry: Configured) -> None:
    assert recognise(argv, "/p", [entry]) is None


def test_the_entry_with_the_same_arguments_comes_first() -> None:
    entries = [configured("srv", name="bare"), configured("srv", "--all", name="all")]
    for argv, name in ((["srv"], "bare"), (["srv", "--all"], "all"), (["srv", "--x"], "bare")):
        found = recognise(argv, "/p", entries)
        assert found is not None and found.name == name
