"""`agentbox hooks`, and what `run` adds to a command line: the user's own configuration is never changed unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pexpect
import pytest

from sandbox.harness.adapters import ADAPTERS, HERE
from tests.cli.runs import one_line, records
from tests.support import agentbox, agentbox_argv, agentbox_env

MERGED = ("claude", "codex", "cursor")
_OWN: dict[str, dict[str, Any]] = {
    "claude": {
        "model": "opus",
        "hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "true é"}]}]},
    },
    "codex": {"hooks": {"Stop": [{"hooks": []}]}},
    "cursor": {"version": 1, "hooks": {"stop": [{"command": "./audit.sh"}]}},
}
# Each with an indentation of its own, the second without a newline at its end.
THEIRS = {
    "claude": json.dumps(_OWN["claude"], indent=4, ensure_ascii=False) + "\n",
    "codex": json.dumps(_OWN["codex"], indent="\t"),
    "cursor": json.dumps(_OWN["cursor"], indent=2) + "\n",
}


@pytest.fixture
def person(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's own HOME."""
    path = tmp_path / "person"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    for variable in ("PI_CODING_AGENT_DIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return path


def target(name: str) -> Path:
    return Path(ADAPTERS[name].path(os.environ))


def snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Each file: content, mode, inode."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mode, path.stat().st_ino)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", ADAPTERS)
def test_show_tells_all_and_changes_nothing(name: str, person: Path) -> None:
    done = agentbox("hooks", "show", name, check=0)
    assert str(target(name)) in done.stdout
    assert ADAPTERS[name].text() in done.stdout
    assert (f"agentbox run -- {name} starts: {name} " in done.stdout) == (name != "cursor")
    assert snapshot(person) == {}


@pytest.mark.parametrize("name", ADAPTERS)
def test_install_and_remove_where_nothing_was(name: str, person: Path) -> None:
    done = agentbox("hooks", "install", name, "--yes", check=0)
    assert f"wrote {target(name)}" in done.stdout
    assert "+++ " in done.stdout
    assert target(name).read_text() == ADAPTERS[name].text()
    before = snapshot(person)
    assert agentbox("hooks", "install", name, "--yes", check=0).stdout == f"unchanged {target(name)}\n"
    assert snapshot(person) == before
    agentbox("hooks", "remove", name, "--yes", check=0)
    assert snapshot(person) == {}
    assert "unchanged" in agentbox("hooks", "remove", name, "--yes", check=0).stdout


@pytest.mark.parametrize("name", MERGED)
def test_install_keeps_what_is_theirs_and_remove_gives_it_back(name: str, person: Path) -> None:
    target(name).parent.mkdir()
    target(name).write_text(THEIRS[name])
    target(name).chmod(0o640)
    agentbox("hooks", "install", name, "--yes", check=0)
    installed = json.loads(target(name).read_text())
    theirs = json.loads(THEIRS[name])
    for event, entries in theirs["hooks"].items():
        assert installed["hooks"][event][: len(entries)] == entries
    assert {key: value for key, value in installed.items() if key != "hooks"} == {
        key: value for key, value in theirs.items() if key != "hooks"
    }
    before = snapshot(person)
    agentbox("hooks", "install", name, "--yes", check=0)
    assert snapshot(person) == before
    agentbox("hooks", "remove", name, "--yes", check=0)
    assert target(name).read_text() == THEIRS[name]
    assert target(name).stat().st_mode & 0o777 == 0o640


def test_another_installation_is_replaced_not_doubled(person: Path) -> None:
    agentbox("hooks", "install", "claude", "--yes", check=0)
    text = target("claude").read_text()
    target("claude").write_text(text.replace(sys.executable, "/opt/elsewhere/python"))
    agentbox("hooks", "install", "claude", "--yes", check=0)
    assert target("claude").read_text() == text


def test_their_hook_in_one_group_with_ours_stays(person: Path) -> None:
    agentbox("hooks", "install", "claude", "--yes", check=0)
    config = json.loads(target("claude").read_text())
    config["hooks"]["PreToolUse"][0]["hooks"].append({"type": "command", "command": "mine"})
    target("claude").write_text(json.dumps(config))
    agentbox("hooks", "remove", "claude", "--yes", check=0)
    left = json.loads(target("claude").read_text())
    assert left == {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "mine"}]}]}}


@pytest.mark.parametrize("name", ADAPTERS)
def test_nothing_is_changed_without_being_asked(name: str, person: Path) -> None:
    done = agentbox("hooks", "install", name, check=2)
    assert "nothing was changed" in done.stderr and "--yes" in done.stderr
    assert "+++ " in done.stdout, "what would change is shown"
    assert snapshot(person) == {}


@pytest.mark.parametrize(("said", "written"), [("n", False), ("y", True)])
def test_a_person_is_asked(said: str, written: bool, person: Path) -> None:
    argv = agentbox_argv("hooks", "install", "claude")
    child = pexpect.spawn(argv[0], argv[1:], env=agentbox_env(), timeout=30, encoding="utf-8")
    child.expect(r"write .*settings.json\? \[y/N\]")
    child.sendline(said)
    child.expect(pexpect.EOF)
    child.close()
    assert target("claude").exists() == written


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"hooks": []}', '{"hooks": {"PreToolUse": {}}}', '// mine\n{"hooks": {}}', "\xff"]
)
def test_a_file_that_is_not_understood_is_left_alone(text: str, person: Path) -> None:
    target("claude").parent.mkdir()
    target("claude").write_bytes(text.encode("latin-1"))
    before = snapshot(person)
    for verb in ("install", "remove"):
        done = agentbox("hooks", verb, "claude", "--yes")
        assert done.returncode != 0
        one_line(done, "settings.json")
    assert snapshot(person) == before


def test_a_file_of_somebody_elses_is_left_alone(person: Path) -> None:
    target("omp").parent.mkdir(parents=True)
    target("omp").write_text("export default () => {}")
    before = snapshot(person)
    for verb in ("install", "remove"):
        one_line(agentbox("hooks", verb, "omp", "--yes", check=125), "is not agentbox's")
    assert snapshot(person) == before
    target("claude").parent.mkdir()
    os.mkfifo(target("claude"))
    one_line(agentbox("hooks", "install", "claude", "--yes", timeout=20), "not a regular file")


def test_a_linked_configuration_stays_a_link(person: Path, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.json"
    kept.write_text(THEIRS["claude"])
    target("claude").parent.mkdir()
    target("claude").symlink_to(kept)
    agentbox("hooks", "install", "claude", "--yes", check=0)
    assert target("claude").is_symlink()
    assert "hook.py" in kept.read_text()


def test_an_unknown_harness_is_told(person: Path) -> None:
    one_line(agentbox("hooks", "install", "emacs", check=2), "one of omp, claude, codex, cursor")


# what `run` adds

STAND_IN = '#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n'


@pytest.fixture
def commands(person: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of the harnesses on PATH that print their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*ADAPTERS, "other"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def given(*command: str, options: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """The arguments that the command got, and what agentbox said."""
    done = agentbox("run", *options, "--", *command, check=0)
    return done.stdout.split("\0")[:-1], done.stderr


def test_known_commands_get_their_hooks(commands: Path, person: Path) -> None:
    assert given("omp", "-p", "fix it")[0] == ["-e", f"{HERE}/omp/agentbox.ts", "-p", "fix it"]
    assert given("omp", "acp")[0][0] == "acp"
    claude = given(str(commands / "claude"), "fix it")[0]
    assert claude[0] == "--settings" and claude[2:] == ["fix it"]
    assert json.loads(claude[1]) == ADAPTERS["claude"].hooks()
    codex = given("codex", "exec", "fix it")[0]
    assert codex[0] == codex[2] == codex[4] == "-c" and codex[6:] == ["exec", "fix it"]
    assert codex[1].startswith("hooks.PreToolUse=[{hooks = [{type = ")
    assert snapshot(person) == {}


def test_the_options_for_codex_are_the_adapter_in_toml(commands: Path) -> None:
    codex = given("codex")[0]
    read = tomllib.loads("\n".join(codex[1::2]))
    assert read == ADAPTERS["codex"].hooks()


@pytest.mark.parametrize(
    "command",
    [
        ("other", "-e"),
        ("cursor", "x"),
        ("omp", "update"),
        ("claude", "mcp", "list"),
        ("sh", "-c", 'omp "$@"', "sh", "a b"),
    ],
    ids=" ".join,
)
def test_other_commands_are_as_they_were(command: tuple[str, ...], commands: Path) -> None:
    got, said = given(*command)
    assert got == (list(command[1:]) if command[0] != "sh" else ["a b"])
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [("claude", "--settings", "mine.json"), ("claude", "--settings={}"), ("omp", "--trusted-extension", "/x.ts")],
    ids=" ".join,
)
def test_where_there_is_no_room_it_is_said(command: tuple[str, ...], commands: Path) -> None:
    got, said = given(*command)
    assert got == list(command[1:])
    assert "leaves no room" in said


def test_it_is_said_that_codex_wants_to_be_told_to_trust(commands: Path, person: Path) -> None:
    assert "until you trust them" in given("codex")[1]
    (person / ".codex").mkdir()
    key = '[hooks.state."/<session-flags>/config.toml:pre_tool_use:0:0"]\ntrusted_hash = "sha256:0"\n'
    (person / ".codex" / "config.toml").write_text(key)
    assert "trust" not in given("codex")[1]


def test_no_hooks_turns_it_off(commands: Path, run_id: str) -> None:
    got, said = given("omp", "x y", options=("--no-hooks", "--run-id", run_id))
    assert got == ["x y"]
    assert len(said.splitlines()) == 1
    assert records(run_id, "task.started")[0]["harness"] is None


def test_the_record_names_the_harness(commands: Path, run_id: str) -> None:
    given("claude", options=("--run-id", run_id))
    started = records(run_id, "task.started")[0]
    assert started["harness"] == "claude"
    assert started["argv"][:2] == ["claude", "--settings"]


def test_a_run_of_an_unknown_command_does_not_load_the_adapters() -> None:
    code = (
        "import sys; from sandbox.cli import launching, run; from sandbox.cli.arguments import Parser\n"
        "parser = Parser('run', '', ''); launching.add_options(parser)\n"
        "given = launching.parse(parser, ['--', 'other', 'omp'])\n"
        "assert launching.spec_of(given, 'r', 'main', new_run=True).harness is None\n"
        "assert 'sandbox.harness.adapters' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=agentbox_env(), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
