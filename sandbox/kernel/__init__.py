"""The only code that touches cgroupfs, /proc, pidfds and prctl."""
