"""Immutable Arrow segment files."""
