"""What the harnesses write to a hook's stdin, after their documentation (docs/harness-*.md), for one call of a tool."""

from __future__ import annotations

from typing import Any

HARNESSES = ("claude", "codex", "cursor")
# Text that a careless reader of JSON would take for the tool's name.
COMMAND = 'echo "tool_name": "Evil" \\" \n; tool_use_id=1'
_CLAUDE = {
    "session_id": "9b1c2f4e-0000-4000-8000-000000000000",
    "transcript_path": "/home/dev/.claude/projects/p/9b1c2f4e.jsonl",
    "cwd": "/home/dev/p",
    "permission_mode": "default",
}
_CODEX = {
    "session_id": "0199f0a0-0000-7000-8000-000000000000",
    "turn_id": "turn-1",
    "transcript_path": None,
    "cwd": "/home/dev/p",
    "model": "scripted",
    "permission_mode": "default",
}
_CURSOR = {
    "conversation_id": "668320d2",
    "generation_id": "490b90b7",
    "model": "scripted",
    "cursor_version": "2.4.0",
    "workspace_roots": ["/home/dev/p"],
    "user_email": None,
    "transcript_path": None,
    "cwd": "/home/dev/p",
}
_COMMON: dict[str, dict[str, Any]] = {"claude": _CLAUDE, "codex": _CODEX, "cursor": _CURSOR}
_TOOL = {"claude": "Bash", "codex": "Bash", "cursor": "Shell"}
_IDS = {"claude": "toolu_01Abcdefgh12345678", "codex": "call_Abcdefgh12345678", "cursor": "tool_Abcdefgh12345678"}
_BEFORE = {"claude": "PreToolUse", "codex": "PreToolUse", "cursor": "preToolUse"}
_AFTER = {"claude": "PostToolUse", "codex": "PostToolUse", "cursor": "postToolUse"}
_RESULT: dict[str, dict[str, Any]] = {
    "claude": {"tool_response": {"stdout": '"tool_name": "Other"', "stderr": "", "interrupted": False}},
    "codex": {"tool_response": "Exit code: 0"},
    "cursor": {"tool_output": '{"exitCode": 0, "stdout": ""}', "duration": 5432},
}


_REST: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "claude": [
        ("Stop", {"stop_hook_active": False, "last_assistant_message": "done"}),
        ("SubagentStop", {"stop_hook_active": False, "agent_transcript_path": "/home/dev/a.jsonl"}),
        ("Notification", {"message": "Claude is waiting for your input", "notification_type": "idle_prompt"}),
        ("SessionEnd", {"reason": "prompt_input_exit"}),
    ],
    "codex": [("Stop", {"stop_hook_active": False, "last_assistant_message": None})],
    "cursor": [("stop", {"status": "aborted", "loop_count": 0})],
}


def rest(harness: str) -> dict[str, dict[str, Any]]:
    """An agent's turn is over, by the event that tells it."""
    return {event: {**_COMMON[harness], "hook_event_name": event, **more} for event, more in _REST[harness]}


def before(harness: str) -> dict[str, Any]:
    """A call is about to begin; named `call_name(harness)`, and who makes it."""
    given = {"tool_name": _TOOL[harness], "tool_use_id": _IDS[harness]}
    return {**_COMMON[harness], "hook_event_name": _BEFORE[harness], "tool_input": {"command": COMMAND}, **given}


def after(harness: str) -> dict[str, Any]:
    """The same call has ended."""
    return {**before(harness), "hook_event_name": _AFTER[harness], **_RESULT[harness]}


def call_name(harness: str) -> str:
    return f"{_TOOL[harness]}:12345678"
