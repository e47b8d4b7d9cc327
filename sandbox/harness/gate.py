"""The gate and the tick: what a worker passes at each boundary between two tool calls.

Stands alone, imports next to nothing and reads the order by itself: it runs thousands of times. gate.sh beside
it gives the same answers. Exit status of the gate: 0 go on, 2 stop, with the reason on stderr.

Marks go to AGENTBOX_BEAT, a line each: `TIME WORD GENERATION NAME TOKENS`, TIME in seconds since 1970, WORD one of
`call` (a call begins), `quiet` (held by a pause), `tick` (a call has ended), `stop` (the worker was told to stop).
What a worker says there is shown to people, and never a reason to end it or to call it dead.
"""

from __future__ import annotations

import os
import sys
import time

GO, STOP = 0, 2
LOOK_EVERY = 0.1
STEER_MAX = 1 << 20


def gate(argv: list[str], environ: dict[str, str]) -> int:
    """`gate [NAME]`: NAME is the call that is about to begin. Blocks while PAUSE holds."""
    name = argv[0] if argv else "-"
    control = environ.get("AGENTBOX_CONTROL", "")
    if not control:
        return GO  # outside of any box nothing holds
    task, held = environ.get("AGENTBOX_TASK_ID", ""), False
    while True:
        word, generation, reason = standing(control, task)
        if word == "RUN":
            # Marked, then looked at again: whoever orders and then reads the marks sees the call, or it sees the order.
            mark(environ, "call", generation, name)
            word, generation, reason = standing(control, task)
            held = False
        if word == "STOP":
            mark(environ, "stop", generation, name)
            sys.stderr.write(f"agentbox: stop: {reason}\n")
            return STOP
        if word == "RUN":
            deliver(control, environ)
            return GO
        if not held:
            mark(environ, "quiet", generation, name)
            held = True
        time.sleep(LOOK_EVERY)


def tick(argv: list[str], environ: dict[str, str]) -> int:
    """`tick [NAME [TOKENS]]`: a call has ended, and took so many tokens."""
    name = argv[0] if argv else "-"
    tokens = argv[1] if len(argv) > 1 and argv[1].isdigit() else "0"
    mark(environ, "tick", 0, name, tokens)
    return GO


def standing(control: str, task_id: str) -> tuple[str, int, str]:
    """The stricter order of run and task, its generation, and why. An emergency stop comes before both."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(control))))
    if os.path.lexists(home + "/EMERGENCY_STOP"):
        return "STOP", 0, "the emergency stop is on"
    found = read(control)
    if found[0] != "STOP" and task_id:
        own = read(os.path.dirname(control) + "/tasks/" + task_id)
        if own[0] == "STOP" or found[0] == "RUN":
            found = (own[0], found[1], own[2])
    return found


def read(path: str) -> tuple[str, int, str]:
    """An order out of its file: word, generation, reason. What can't be trusted is STOP, and is never waited for."""
    name = os.path.basename(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return "STOP", 0, f"{name}: {error.strerror}"
    try:
        info = os.fstat(fd)
        if info.st_mode & 0o170000 != 0o100000:
            return "STOP", 0, f"{name}: not a regular file"
        if info.st_uid not in (0, os.stat(os.path.dirname(path)).st_uid):
            return "STOP", 0, f"{name}: owned by uid {info.st_uid}"
        lines = os.read(fd, 4096).decode("utf-8", "replace").splitlines() or [""]
    except OSError as error:
        return "STOP", 0, f"{name}: {error.strerror}"
    finally:
        os.close(fd)
    word, _, number = lines[0].partition(" ")
    if word not in ("RUN", "PAUSE", "STOP") or not (number.isascii() and number.isdigit()) or len(number) > 18:
        return "STOP", 0, f"{name}: holds no order"
    reason = next((line[8:] for line in lines[1:] if line.startswith("reason: ")), "")
    return word, int(number), reason


def mark(environ: dict[str, str], word: str, generation: int, name: str, tokens: str = "0") -> None:
    """One line appended to the beat file. A mark that can't be written holds nobody up."""
    path = environ.get("AGENTBOX_BEAT", "")
    if not path:
        return
    shown = "".join(c if c.isalnum() or c in "._:-" else "_" for c in name)[:64] or "-"
    line = f"{time.time():.3f} {word} {generation} {shown} {tokens}\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return
    try:
        os.write(fd, line.encode("ascii", "replace"))
    except OSError:
        pass
    finally:
        os.close(fd)


def deliver(control: str, environ: dict[str, str]) -> None:
    """Print each change of the task's plan that was not delivered yet, one JSON object a line, each once.

    The claim is a file made exclusively, so that of several gates of one task one alone delivers.
    """
    task = environ.get("AGENTBOX_TASK_ID", "")
    beat = environ.get("AGENTBOX_BEAT", "")
    run = os.path.dirname(os.path.dirname(control))
    try:
        fd = os.open(f"{run}/steer/{task}.jsonl", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        lines = os.read(fd, STEER_MAX).decode("utf-8", "replace").splitlines(keepends=True)
    except OSError:
        return
    finally:
        os.close(fd)
    for number, line in enumerate(lines):
        if line.endswith("\n") and beat and _claim(f"{beat}.steer.{number}"):
            sys.stdout.write(line)
    sys.stdout.flush()


def _claim(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    verb, *rest = sys.argv[1:] or ["gate"]
    sys.exit((tick if verb == "tick" else gate)(rest, dict(os.environ)))
