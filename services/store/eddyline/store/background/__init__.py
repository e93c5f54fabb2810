"""The store's own jobs and their order."""
