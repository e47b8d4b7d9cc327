"""Secrets are taken out of what is recorded, by rule: names of flags and variables, shapes of keys.

A secret that stands alone and looks like any word can't be told by a rule; give it by the environment,
whose values are never recorded. Where a rule can't be sure, it hides.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

REDACTED = "[redacted]"

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_LETTER = re.compile(r"[^a-z0-9]+")

# A name is secret if one of these is anywhere in it (lower case, without - _ . and the like) ...
_INSIDE = re.compile(
    r"token(?!i[sz])|secret|passw|passphrase|passcode|api_?key|access_?key|private_?key|credential|authoriz"
    r"|bearer|connection_?string"
)
# ... or one of these is one of its words, or it ends in one of these.
_WORD_OF_IT = re.compile(
    r"(?:^|_)(?:auth|oauth|pass|pwd|pat|psk|jwt|creds?|cookies?|otp|totp|dsn|sas|passin|passout)(?:_|$)"
    r"|(?<!by)(?<!com)(?<!tres)pass$|pwd$|cookie$|._key$|webhook$|(?:^|_)pin$|^(?:sid|session(?:_?id)?)$"
)
_HARMLESS_KEY = re.compile(r"(?:public|sort|primary|foreign|partition|cache|group|host)_?key$")
# What such a name ends or begins with when it tells of a secret without being one.
_ABOUT = re.compile(
    r"(?:^|_)(?:file|path|dir|stdin|type|method|mode|limit|count|budget|ttl|expiry|timeout|length|size|url|uri"
    r"|endpoint|env|scheme|style|policy|helper)$|^(?:no|with|without|use|skip|ask|disable|enable|max|min|num)_"
)

# Starts only where a name starts, and never gives back: linear, whatever the text.
_NAME = r"(?<![\w.-])(?P<name>[\w.-]++)"
_SEPARATOR = r"(?:(?P<sep>\\*[\]\"']{0,2}[ \t]*(?::=|=>|[=:])[ \t]*)|(?P<gap>(?:[ \t]|\\\r?\n)+))"
_PAIR = re.compile(_NAME + _SEPARATOR)
_WORD = re.compile(
    r"\\+[\"'].*?(?:\\+[\"']|$)|(?:\"(?:[^\"\\]|\\.)*(?:\"|$)|'[^']*(?:'|$)|\\.|[^\s&;|<>\"'\\])+", re.DOTALL
)
_COLON_WORD = re.compile(r"\\+[\"'].*?(?:\\+[\"']|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)|'[^']*(?:'|$)|[^\s\"',;]+", re.DOTALL)
_QUOTED = re.compile(r"(\\*[\"']).*?(\\*[\"'])", re.DOTALL)
_LINE = re.compile(r"[^\r\n\"']+")
_HEADER_NAMES = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})
_HEADER_FLAGS = frozenset({"-H", "--header", "--proxy-header"})

_WHOLE_PAIR = re.compile(r"(-{0,2}[A-Za-z_][\w.\-\[\]]*?)(:?=)(.*)", re.DOTALL)
_WHOLE_HEADER = re.compile(r"([A-Za-z][\w-]*)(:[ \t]*)(\S.*)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{8,}|(?:sk|rk|pk)_(?:live|test)_\w{8,}|whsec_\w{8,}"
    r"|gh[opusr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|gl(?:ptt|rt|dt)-[\w-]{8,}"
    r"|xox[a-z]-[\w-]{6,}|xapp-[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w.-]{8,}"
    r"|eyJ[\w-]{4,1024}+\.[\w-]{2,}+(?:\.[\w-]*)?|npm_\w{16,}|pypi-[\w-]{16,}|hf_\w{10,}|SG\.[\w-]{8,64}+\.[\w-]{8,}"
    r"|dop_v1_\w{8,}|shp(?:at|ss|ca|pa)_\w{8,}|AGE-SECRET-KEY-\w{8,}|hv[sbr]\.[\w-]{8,}|gsk_\w{8,}"
    r"|xai-\w{8,}|pplx-\w{8,}|r8_\w{8,}|glsa_\w{8,}|dapi[0-9a-f]{16,}|lin_api_\w{8,}|ntn_\w{8,}"
    r")",
    re.DOTALL,
)
_SCHEME = re.compile(r"\b(Bearer|Basic|Token)([ \t]+)(?=\S*\d|\S{16})[\w.~+/=-]{6,}", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(://[^\s/?#:@\"'<>]*:)(?:[^\s/?#\"'<>]*|(?!\d{1,5}[/?#])[^\s\"'<>@]{0,256})@")
_URL_TOKEN = re.compile(r"(\bhttps?://)[^\s/?#:@\"'<>]+@", re.IGNORECASE)
_WEBHOOK = re.compile(r"(hooks\.slack\.com/services/|discord(?:app)?\.com/api/webhooks/)[\w/-]+")

# Short flags mean a secret only to these programs: all of their spelling, glued (-pX) and apart (-p X).
_GLUED = {"mysql": "-p", "mariadb": "-p", "sshpass": "-p", "redis-cli": "-a", "curl": "-u", "ldap": "-w"}
_APART = {"sshpass": "-p", "redis-cli": "-a", "curl": "-u", "ldap": "-w", "docker": "-p", "podman": "-p"}
_PROGRAM = re.compile(r"(?<![\w-])(mysql|mariadb|sshpass|redis-cli|curl|ldap|docker|podman)[\w-]*(?![\w./-])")
_LOGIN = re.compile(r"\blogin\b")
_SHORT = {
    flag: re.compile(rf"(?<!\S)({flag}[ \t]*)(\"[^\"]*(?:\"|$)|'[^']*(?:'|$)|[^\s;|&]+)")
    for flag in ("-p", "-a", "-u", "-w")
}
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k|a|fi)?sh")
_DASH_C = re.compile(r"-[a-z]*c")
_COMMAND = re.compile(r"[^\n;|&]+")

# One quick look tells that most arguments have nothing in them.
_PLAIN = re.compile(r"[A-Za-z0-9/.,+%@^*?!#~-]{0,7}|[a-z/.]+|-{1,2}[a-z]+")


def redact(argv: Sequence[str]) -> list[str]:
    """`argv` with each secret in it replaced by REDACTED; doing it twice changes nothing more."""
    out: list[str] = [""]  # nothing before the first
    awaits = ""
    programs: set[str] = set()
    for arg in argv:
        if awaits and _is_value(arg, awaits):
            out.append(REDACTED)
            awaits = ""
            continue
        shell = len(out) > 2 and _DASH_C.fullmatch(out[-1]) and _SHELL.fullmatch(out[-2])
        out.append(redact_text(arg) if shell else _one(arg, out[-1], programs))
        awaits = arg if _takes_secret(arg, out, programs) else ""
        if program := _PROGRAM.fullmatch(arg.rpartition("/")[2]):
            programs.add(program[1])
    return out[1:]


def command_line(argv: Sequence[str] | None, name: str | None) -> str:
    """A process as people are shown it: its arguments without secrets, or `[name]` where it has none."""
    return " ".join(redact(argv)) if argv else f"[{name or '?'}]"


def described(process: dict[str, Any]) -> dict[str, Any]:
    """The fields of a process with its `argv` without secrets."""
    argv = process.get("argv")
    return {**process, "argv": redact(argv)} if argv else process


def redact_text(text: str) -> str:
    """`text` (a shell line, JSON, a header, prose) with each secret in it replaced by REDACTED."""
    if _PLAIN.fullmatch(text):
        return text
    text = _SHAPES.sub(REDACTED, text)
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1{REDACTED}@", text)
        text = _URL_TOKEN.sub(rf"\1{REDACTED}@", text)
        text = _WEBHOOK.sub(rf"\1{REDACTED}", text)
    text = _pairs(text)
    text = _SCHEME.sub(rf"\1\2{REDACTED}", text)
    return _COMMAND.sub(_short_flags, text) if _PROGRAM.search(text) else text


def secret_name(name: str) -> bool:
    """Does a flag, variable, key or header of this name hold a secret? By the words in it."""
    if name in ("PWD", "OLDPWD"):
        return False
    spaced = _HUMP.sub("_", name.strip("-")).lower()
    flat = _NO_LETTER.sub("_", spaced).strip("_")
    if _ABOUT.search(flat) or _HARMLESS_KEY.search(flat):
        return False
    return bool(_INSIDE.search(flat) or _WORD_OF_IT.search(flat))


def _one(arg: str, before: str, programs: set[str]) -> str:
    """One argument, after `before` and after the names of `programs`."""
    if _PLAIN.fullmatch(arg) and not programs:
        return arg
    if (pair := _WHOLE_PAIR.fullmatch(arg)) and secret_name(pair[1]) and not _is_number_of(pair[1], pair[3]):
        return f"{pair[1]}{pair[2]}{REDACTED}"
    header = _WHOLE_HEADER.fullmatch(arg)
    if header and secret_name(header[1]):
        name = header[1].lower()
        if before in _HEADER_FLAGS or name in _HEADER_NAMES or not re.search(r"\s", header[3]):
            return f"{header[1]}{header[2]}{REDACTED}"
    for program in programs:
        flag = _GLUED.get(program, "")
        if flag and arg.startswith(flag) and len(arg) > len(flag):
            return flag + REDACTED
    return redact_text(arg)


def _takes_secret(arg: str, argv: Sequence[str], programs: set[str]) -> bool:
    """Is the argument after the flag `arg` a secret?"""
    if _FLAG.fullmatch(arg) and secret_name(arg):
        return True
    login = "login" in argv
    for program in programs:
        if arg == _APART.get(program) and (login or program not in ("docker", "podman")):
            return True
    return arg in ("--user", "--proxy-user") and "curl" in programs


def _is_value(arg: str, flag: str) -> bool:
    """Is `arg` the value of `flag`, and not the next flag? -x and --word are flags, all else is a value."""
    if _is_number_of(flag, arg):
        return False
    return not (re.fullmatch(r"-[A-Za-z]", arg) or re.match(r"--[a-z]", arg))


def _is_number_of(name: str, value: str) -> bool:
    """A number of tokens, as in --tokens 4096, is no secret."""
    return name.lower().endswith("tokens") and re.fullmatch(r"\d+[kKmM]?", value) is not None


def _pairs(text: str) -> str:
    """Hide the value of each `name=value`, `name: value`, `--name value` in a text whose name is secret."""
    out: list[str] = []
    done = at = 0
    while pair := _PAIR.search(text, at):
        at = pair.end()
        name = pair["name"]
        if (pair["gap"] and not _FLAG.fullmatch(name)) or not secret_name(name):
            # What followed the blank may itself be a name.
            continue
        value = _value_at(text, pair)
        if value is None or _is_number_of(name, value[0]) or (pair["gap"] and not _is_value(value[0], name)):
            continue
        quoted = _QUOTED.fullmatch(value[0])
        out.append(text[done:at] + (f"{quoted[1]}{REDACTED}{quoted[2]}" if quoted else REDACTED))
        done = at = value.end()
    return "".join(out) + text[done:] if out else text


def _value_at(text: str, pair: re.Match[str]) -> re.Match[str] | None:
    """Where the value of a pair ends: a shell word, or a JSON value, or the line of a header."""
    colon = ":" in (pair["sep"] or "")
    if colon and pair["name"].lower() in _HEADER_NAMES and (line := _LINE.match(text, pair.end())):
        return line
    return (_COLON_WORD if colon else _WORD).match(text, pair.end())


def _short_flags(command: re.Match[str]) -> str:
    """One command of a shell line, without the secrets behind its program's short flags."""
    line = command[0]
    for program in {found[1] for found in _PROGRAM.finditer(line)}:
        flag = _APART.get(program) or _GLUED[program]
        if program in ("docker", "podman") and not _LOGIN.search(line):
            continue
        if program in ("mysql", "mariadb"):
            line = re.sub(r"(?<!\S)(-p)(?![\s\[])\S+", rf"\1{REDACTED}", line)
            continue
        line = _SHORT[flag].sub(rf"\1{REDACTED}", line)
    return line
