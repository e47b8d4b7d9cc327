"""A secret given on a command line is in no record; what is no secret stays readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.manifest.redact import REDACTED, redact, redact_text, secret_name
from sandbox.manifest.writer import Writer

C = "canary-456"

SECRET = [
    ["tool", "--token", C],
    ["tool", f"--token={C}"],
    ["tool", "--token", f"-{C}"],
    ["tool", "-token", C],
    ["tool", "--Token", C],
    ["tool", "--api-key", C],
    ["tool", "--api_key", C],
    ["tool", "--apiKey", C],
    ["tool", "--openai-key", C],
    ["tool", "--client-secret", C],
    ["tool", "--passphrase", C],
    ["tool", "--auth", f"u:{C}"],
    ["tool", f"--password={C} with space & more"],
    ["tool", f"--env=MY_SECRET={C}"],
    ["env", f"OPENAI_API_KEY={C}", "tool"],
    ["env", f"PGPASSWORD={C} {C}", "psql"],
    ["docker", "run", "-e", f"GITHUB_TOKEN={C}", "image"],
    ["docker", "run", f"-eGITHUB_TOKEN={C}", "image"],
    ["docker", "login", "-u", "me", "-p", C],
    ["java", f"-DapiKey={C}"],
    ["helm", "--set", f"a.b.password={C},x=1"],
    ["tool", f"data[password]={C}"],
    ["git", "-c", f"http.extraheader=AUTHORIZATION: basic {C}"],
    ["git", "clone", f"https://me:{C}@host/x"],
    ["git", "clone", f"https://{C}@host/x"],
    ["psql", f"postgres://me:p@{C}@host/db?x=1"],
    ["redis-cli", "-u", f"redis://:a/{C}@host/0"],
    ["curl", "-H", f"Authorization: Bearer {C}", "url"],
    ["curl", "-H", f"X-Api-Key: {C} {C}"],
    ["curl", f"https://x/?access_token={C}&y=1"],
    ["curl", "-u", f"me:{C}", "url"],
    ["curl", f"-ume:{C}", "url"],
    ["curl", "--user", f"me:{C}"],
    ["/usr/bin/mysql", f"-p{C}", "db"],
    ["sshpass", "-p", C, "ssh", "host"],
    ["openssl", "-passin", f"pass:{C}"],
    ["sh", "-c", f"OPENAI_API_KEY={C} tool --token {C} x"],
    ["sh", "-c", f"tool --token='{C} {C}' --x"],
    ["sh", "-c", f'tool --token "{C} {C}" --x'],
    ["sh", "-c", f"tool --token \\\n   {C}"],
    ["sh", "-c", f'curl -H "Authorization: Bearer {C}" https://x'],
    ["sh", "-c", f"curl -u me:{C} https://x"],
    ["sh", "-c", f"mysql -uroot -p{C} db"],
    ["bash", "-lc", f'export TOKEN={C}"{C}"; tool'],
    ["tool", f'{{"api_key": "{C}", "x": 1}}'],
    ["tool", f'{{\\"api_key\\": \\"{C} {C}\\"}}'],
    ["tool", f"password: {C}"],
    ["tool", f"Cookie: a={C}; b={C}"],
    ["tool", f"sk-ant-api03-{C}"],
    ["tool", f"xoxb-{C}"],
    ["tool", f"glpat-{C}"],
]

SHAPES = [
    "sk-proj-abcdefgh1234",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghij",
    "xoxb-17653672481-19874698323",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyDaGmWKa4JsXZ-HjGw7ISLn_3namBGewQe",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----",
]

PLAIN = [
    ["sleep", "900"],
    ["claude", "-p", "Fix the login, tokens are cut off at --max-tokens 4096: why?"],
    ["tool", "--max-tokens", "4096", "--tokens=100", "--token-file", "/x", "--password-stdin", "--tokenizer", "gpt2"],
    ["tool", "--author", "Bob <b@example.org>", "--sort-key=2", "PWD=/x", "--no-auth", "x", "key=value", "a:b"],
    ["docker", "run", "-p", "8080:80", "image"],
    ["mkdir", "-p", "a/b"],
    ["ssh", "-p", "22", "git@example.org"],
    ["npm", "--registry", "http://localhost:4873/@scope/pkg"],
    ["git", "clone", "ssh://git@example.org/x"],
    ["mysql", "--password", "-h", "host"],
    ["pip", "install", "scikit-learn", "sk-learn"],
    ["sh", "-c", "setsid sh -c 'while :; do date >> /tmp/tick; sleep .2; done' & wait"],
    ["python3", "-c", "import time; time.sleep(9)", "", "\udcff"],
]


@pytest.mark.parametrize("argv", SECRET, ids=lambda argv: " ".join(argv)[:60])
def test_no_secret_is_left(argv: list[str]) -> None:
    told = redact(argv)
    assert "canary" not in " ".join(told)
    assert len(told) == len(argv) and told[0] == argv[0] and REDACTED in " ".join(told)
    assert redact(told) == told


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("around", ["{}", "x={}", "see {} here", '{{"a":"{}"}}'])
def test_a_key_is_known_by_its_shape(shape: str, around: str) -> None:
    assert redact_text(around.format(shape)) == around.format(REDACTED)


@pytest.mark.parametrize("argv", PLAIN, ids=lambda argv: " ".join(argv)[:60].encode("ascii", "replace").decode())
def test_what_is_no_secret_stays(argv: list[str]) -> None:
    assert redact(argv) == argv


def test_the_rest_of_a_command_line_stays_readable() -> None:
    assert redact(["sh", "-c", f"API_KEY={C} tool --token {C} --verbose"])[2] == (
        f"API_KEY={REDACTED} tool --token {REDACTED} --verbose"
    )


def test_names() -> None:
    secret = ["OPENAI_API_KEY", "--token", "clientSecret", "MYSQL_PWD", "REDISCLI_AUTH", "X-Auth-Token", "GH_PAT"]
    other = ["--key", "PATH", "max_tokens", "--token-file", "author", "TOKENIZERS_PARALLELISM", "PWD", "bypass", ""]
    assert [name for name in secret if not secret_name(name)] == []
    assert [name for name in other if secret_name(name)] == []


def test_canaries_reach_no_byte_of_the_manifest(tmp_path: Path) -> None:
    path = str(tmp_path / "manifest.jsonl")
    writer = Writer(path, "r1")
    for argv in SECRET:
        writer.append("run.created", argv=argv, labels={"token": C, "note": f"password={C}", "plain": "kept"})
        writer.append("task.started", task_id="main", argv=argv, pid=1)
        writer.append("stop.receipt", reason=f"--token {C}", processes=[{"pid": 1, "argv": argv}])
        writer.append("task.failed_to_start", task_id="main", why=f"exec failed: TOKEN={C}")
    text = Path(path).read_text()
    assert "canary" not in text
    assert json.loads(text.splitlines()[0])["labels"]["plain"] == "kept"


def test_what_is_acted_on_is_kept_as_it_is(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "branch": "agent/sk-learn-all-of-it/main",
        "worktree": "/w/token=x",
        "box": {"id": "sk-0123456789"},
    }
    record = Writer(str(tmp_path / "m"), "sk-0123456789").append("task.started", task_id="a", pid=1, **fields)
    assert {name: record[name] for name in fields} == fields and record["run_id"] == "sk-0123456789"


@given(st.lists(st.text(alphabet=st.characters(codec=None), max_size=40), max_size=6))
def test_any_argv_has_an_answer_of_its_length(argv: list[str]) -> None:
    assert len(redact(argv)) == len(argv)


@given(st.text(alphabet="tokenpasswrd=:\"'\\ -{}[],;&\n@/hu1", max_size=60))
def test_any_text_has_an_answer(text: str) -> None:
    redact_text(text)
