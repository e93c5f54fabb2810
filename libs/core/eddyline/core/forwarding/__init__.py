"""Forwarding of calls to the shard that owns their topic or source."""
