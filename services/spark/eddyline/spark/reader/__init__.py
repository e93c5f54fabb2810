"""Batch and stream reads."""
