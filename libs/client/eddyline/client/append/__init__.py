"""Appends."""
