"""An agent's MCP client: starts servers as harnesses do, speaks the first words of the protocol, and stays.

usage: client.py OPTIONS    OPTIONS is a JSON object: `servers`, a list of command lines; `stdio`, `pipe` (default)
or `socket`; `leak`, true if each server inherits the write end of its own stdin.

Writes `servers.json` in its working directory, a list of pids, when all have answered. SIGUSR1: lets go of every
server's stdin and lives on. Source: modelcontextprotocol.io, specification, lifecycle and stdio transport.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import Any

HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "client", "version": "1"}},
}


def start(argv: list[str], stdio: str, leak: bool) -> tuple[subprocess.Popen[bytes], Any]:
    """The server and what its stdin is written to."""
    if stdio == "socket":
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(argv, stdin=theirs.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        theirs.close()
        return process, ours.makefile("wb", buffering=0)
    reader, writer = os.pipe()
    keep = (writer,) if leak else ()
    process = subprocess.Popen(argv, stdin=reader, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=keep)
    os.close(reader)
    return process, open(writer, "wb", buffering=0)


def main() -> None:
    given = json.loads(sys.argv[1])
    servers, inputs = [], []
    for argv in given["servers"]:
        process, stdin = start(argv, given.get("stdio", "pipe"), given.get("leak", False))
        servers.append(process)
        inputs.append(stdin)
    for process, stdin in zip(servers, inputs, strict=True):
        stdin.write(json.dumps(HELLO).encode() + b"\n")
        assert process.stdout is not None
        answer = process.stdout.readline()
        assert b'"result"' in answer, (process.args, answer)
    with open("servers.part", "w") as file:
        json.dump([process.pid for process in servers], file)
    os.rename("servers.part", "servers.json")

    def let_go(*_: object) -> None:
        while inputs:
            inputs.pop().close()

    signal.signal(signal.SIGUSR1, let_go)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
