"""Paths and identity of a data directory."""
