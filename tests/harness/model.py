"""A model that follows a script: an OpenAI-compatible chat-completions server at a loopback address.

Each conversation is known by a word (the script's key); its answers are given in order, and then "done".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Call = tuple[str, dict[str, Any]]
Answer = str | list[Call]
Script = list[Answer | Callable[[], Answer]]
"""What a conversation's model says, one after the other: a text, tool calls made at once, or what gives one."""


class Model:
    """`scripts`: by conversation, known by a word in its first message of a user.

    `asked`: the conversations, in the order in which they asked. `heard`: by conversation, the messages it last sent.
    """

    def __init__(self, scripts: dict[str, Script]) -> None:
        self.scripts = scripts
        self.asked: list[str] = []
        self.heard: dict[str, str] = {}
        self.url = ""
        self._lock = threading.Lock()
        self._count = 0

    def answer(self, messages: list[dict[str, Any]]) -> Answer:
        """The next answer of the conversation that has sent these messages."""
        first = json.dumps(next((m for m in messages if m["role"] == "user"), {}))
        with self._lock:
            key = next((name for name in self.scripts if name in first), "")
            if not key:
                return "ok"
            self.asked.append(key)
            self.heard[key] = json.dumps(messages)
            script = self.scripts[key]
            answer = script.pop(0) if script else "done"
        return answer() if callable(answer) else answer

    def number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count


@contextmanager
def serving(model: Model) -> Iterator[Model]:
    """Serve `model` at a free port of 127.0.0.1 for the time of the block; its `url` says where."""
    handler = type("Handler", (_Handler,), {"model": model})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    model: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.model.answer(body.get("messages", []))
        number = self.model.number()
        delta: dict[str, Any] = {"role": "assistant"}
        if isinstance(answer, str):
            delta["content"] = answer
        else:
            delta["tool_calls"] = [
                {
                    "index": index,
                    "id": f"call_{number}{index}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(given)},
                }
                for index, (name, given) in enumerate(answer)
            ]
        reason = "stop" if isinstance(answer, str) else "tool_calls"
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        chunk = {"id": f"chat-{number}", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
        self._send([
            {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage},
        ])  # fmt: skip

    def _send(self, chunks: list[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        try:
            self.wfile.write(text.encode())
        except OSError:
            pass  # whoever asked was stopped

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return
