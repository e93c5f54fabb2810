"""Streams and their subscriptions."""
