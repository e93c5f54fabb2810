"""Paths and identity of a data directory, the WAL and segment files."""
