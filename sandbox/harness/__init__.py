"""What a worker's harness meets: the gate, the tick, and the adapters that call them."""
