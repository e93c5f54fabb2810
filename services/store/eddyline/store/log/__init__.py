"""One topic in memory, no I/O."""
