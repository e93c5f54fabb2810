"""The log on disk: open files, walks, garbage, catalog entries."""
