"""Backends: base.py is the contract, one file a backend."""
