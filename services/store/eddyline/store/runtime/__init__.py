"""Threads, locks, clocks."""
