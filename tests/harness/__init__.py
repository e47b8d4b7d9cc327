"""Real harnesses, and the commands that they call, against the real gate."""
