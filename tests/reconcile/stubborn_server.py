"""An MCP server that ignores the end of its input and SIGTERM; with `spin` as argument it burns a processor, too."""

from __future__ import annotations

import json
import signal
import sys
import time


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}) + "\n")
        sys.stdout.flush()
    while True:
        if "spin" not in sys.argv:
            time.sleep(60)


if __name__ == "__main__":
    main()
