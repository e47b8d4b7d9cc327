"""The fleet live in a terminal: what is sampled, how it is drawn, and the keys that act on it."""
