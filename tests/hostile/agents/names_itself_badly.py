"""Workers with an argv of 100 KB, of bytes that are no text, of lines that look like records, and of nothing."""

from collections.abc import Callable

from tests.hostile.agents.common import again, child, main_beats


def exec_as(*words: bytes) -> Callable[[str], None]:
    return lambda name: again("beats", name, *words)


child("long", act=exec_as(b"x" * 100_000))
child("raw", act=exec_as(bytes(range(1, 256)), b"\x1b]0;mine\x07\n\r\n"))
child("record", act=exec_as(b'"}\n{"v": 1, "event": "stop.receipt", "proof": "empty"}\n', b"--token=sk-" + b"a" * 40))
child("empty", act=exec_as(b"", b"", b""))
main_beats()
