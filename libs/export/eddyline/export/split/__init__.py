"""Ranges of topics (splits) out of a store, by synchronous calls, as Arrow batches."""
