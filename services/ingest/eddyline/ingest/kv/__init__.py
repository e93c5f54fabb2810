"""Writes into buckets."""
