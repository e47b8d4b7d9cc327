"""Where a run stopped: the facts from the record, the kernel, the marks and git, and their three forms."""
