"""Exactly-once writes."""
