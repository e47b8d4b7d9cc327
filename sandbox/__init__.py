"""agentbox: start agents in boxes that one command stops whole."""

__version__ = "0.1.0"
