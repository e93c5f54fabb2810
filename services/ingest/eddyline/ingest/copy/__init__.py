"""Consumers, batches, positions, gaps and dead letters."""
