"""Caps, TTL, record deletes."""
