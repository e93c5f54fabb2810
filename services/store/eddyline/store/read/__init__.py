"""Reads of log and fold."""
