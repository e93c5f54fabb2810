"""Channels, calls, access."""
