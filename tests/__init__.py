"""Tests of the real thing: real processes, cgroups, systemd, docker and a virtual machine."""
