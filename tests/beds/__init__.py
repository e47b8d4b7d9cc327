"""Test beds: the machines, real down to the kernel, on which tests run.

`plugin` is what pytest sees; `nspawn`, `vm` and `dockerd` each bring up one kind of machine.
"""
