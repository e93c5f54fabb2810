"""Calls passed on to the owning shard."""
