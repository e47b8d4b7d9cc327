"""What a worker's harness meets: the gate, the tick, and the adapters that call them."""

BY_COMMAND_LINE = (b"omp", b"claude", b"codex")
"""Commands to which `run` adds their adapter (adapters.py); looked at by each `run`, so it stands here alone."""
