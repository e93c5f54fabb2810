"""Ownership and life of sources."""
