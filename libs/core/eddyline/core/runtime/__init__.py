"""Clock, files, settings, tasks, back-off, text."""
