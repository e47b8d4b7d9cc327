"""From a command to a running box: spec, ids, barrier, terminal, exit status."""
