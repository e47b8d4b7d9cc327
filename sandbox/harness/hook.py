"""The command that the hooks of Claude Code, Codex and Cursor call: the gate and the tick, told in their words.

    python -I -S hook.py claude|codex|cursor gate|tick|rest      with the harness's JSON on stdin

`rest`: an agent's turn is over, so no call of it is under way: one that a person interrupted or refused has no hook
after it, and is marked as ended here. With Codex, whose hooks name the turn, so is one of an earlier turn, before the
next call. Calls of other agents of the task stay as they are.

Each takes a refusal in a form of its own, and none but exit 0 and 2 of a hook as an answer at all: what goes wrong
here is a refusal, in the harness's words. All three let a call through whose hook takes longer than its time-out, so
a pause that lasts longer than LONGEST refuses the call. Sources, as of 2026-11:

- Claude Code: https://code.claude.com/docs/en/hooks (2.1): `tool_name`, `tool_use_id` on stdin; exit 2 refuses and
  gives stderr to the model; `"continue": false` ends the turn, from before as from after a call.
- Codex: https://developers.openai.com/codex/hooks and codex-rs/hooks/src/{schema.rs,events} of github.com/openai/codex
  (0.124 and later): the same, with `turn_id`, but `"continue": false` counts as an error before a call, and only after
  one as an end.
- Cursor: https://cursor.com/docs/agent/hooks (2.x): `"permission": "deny"` with a message for the user and one for
  the agent.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import zlib
from typing import Any

LONGEST = 86_000
CHANGED = "The plan of this task was changed, and this call, made before, was not carried out. Go on with:"


def main(argv: list[str], environ: dict[str, str]) -> int:
    harness, verb = argv
    try:
        payload = json.loads(sys.stdin.buffer.read())
    except ValueError:
        payload = {}
    payload = payload if isinstance(payload, dict) else {}
    name = call_name(payload)
    if verb == "rest":
        # Claude Code notifies of more than of a prompt that has been waiting for a while.
        if payload.get("notification_type", "idle_prompt") == "idle_prompt":
            close(agent(payload), environ)
        return _settled(harness)
    if verb == "gate" and payload.get("turn_id"):
        close(agent(payload), environ, but=name.rpartition(".")[2])
    return before(harness, name, environ) if verb == "gate" else after(harness, name, environ)


def call_name(payload: dict[str, Any]) -> str:
    """`TOOL:ID:AGENT.TURN`, all but the tool shortened. Calls that are under way together are told apart by it."""
    tool = re.sub(r"[^A-Za-z0-9._-]", "_", str(payload.get("tool_name", "")))[:40]
    number = re.sub(r"[^A-Za-z0-9]", "", str(payload.get("tool_use_id", "")))[-8:]
    return f"{tool or '-'}:{number}:{agent(payload)}.{_short(payload.get('turn_id'))}"


def agent(payload: dict[str, Any]) -> str:
    """Which agent of the task: of which session (Cursor: conversation), and which subagent there."""
    return _short(payload.get("session_id") or payload.get("conversation_id"), payload.get("agent_id"))


def _short(*words: object) -> str:
    return f"{zlib.crc32(repr(words).encode()):08x}"[:6]


def close(whose: str, environ: dict[str, str], but: str = "") -> None:
    """Mark the calls of an agent that are under way as ended, all but those of the turn `but`. Never raises."""
    try:
        from sandbox.harness import beat

        for name in beat.under_way(beat.marks(environ.get("AGENTBOX_BEAT", ""))):
            of, _, turn = name.rpartition(":")[2].partition(".")
            if of == whose and turn and turn != but:
                _gate().tick([name], environ)
    except Exception:
        return  # what a harness is answered does not depend on it


def before(harness: str, name: str, environ: dict[str, str]) -> int:
    code, delta, reason = ask(name, environ)
    if code == 2:
        return refuse(harness, reason, stop=True)
    if code != 0:
        return refuse(harness, reason, stop=False)
    if delta:
        _gate().tick([name], environ)
        return refuse(harness, f"{CHANGED}\n{delta}", stop=False)
    return _settled(harness)


def ask(name: str, environ: dict[str, str]) -> tuple[int, str, str]:
    """The gate's exit status (1: it could not answer), a change of the plan or "", and why not."""

    def tired(*_: object) -> None:
        raise TimeoutError(f"held by a pause for {LONGEST} s: wait, then ask again")

    said, complained = io.StringIO(), io.StringIO()
    streams = sys.stdout, sys.stderr
    signal.signal(signal.SIGALRM, tired)
    signal.alarm(LONGEST)
    sys.stdout, sys.stderr = said, complained
    try:
        code = _gate().gate([name], environ)
    except Exception as error:
        return 1, "", f"agentbox: the gate could not answer: {error or type(error).__name__}"
    finally:
        signal.alarm(0)
        sys.stdout, sys.stderr = streams
    return code, said.getvalue().strip(), complained.getvalue().strip()


def refuse(harness: str, reason: str, *, stop: bool) -> int:
    """Say no in the harness's form; `stop`: and end the turn, where it has a word for that."""
    if harness == "cursor":
        _say({"permission": "deny", "user_message": reason, "agent_message": reason})
    elif harness == "claude" and stop:
        decision = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        specific = {"hookEventName": "PreToolUse", **decision}
        _say({"continue": False, "stopReason": reason, "hookSpecificOutput": specific})
    else:
        sys.stderr.write(f"{reason}\n")
        return 2
    return 0


def after(harness: str, name: str, environ: dict[str, str]) -> int:
    """Mark the call's end; under STOP the turn ends with it."""
    _gate().tick([name], environ)
    if harness == "cursor":
        return _settled(harness)
    control = environ.get("AGENTBOX_CONTROL", "")
    word, _, reason = _gate().standing(control, environ.get("AGENTBOX_TASK_ID", "")) if control else ("", 0, "")
    if word == "STOP":
        _say({"continue": False, "stopReason": f"agentbox: stop: {reason}"})
    return 0


def _settled(harness: str) -> int:
    if harness == "cursor":
        sys.stdout.write("{}\n")
    return 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


def _gate() -> Any:
    from sandbox.harness import gate

    return gate


if __name__ == "__main__":
    # Run by its path, isolated: the package may be anywhere. Last, so that nothing of it hides the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.exit(main(sys.argv[1:], dict(os.environ)))
