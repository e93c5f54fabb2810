"""Values and rules of topics, sources, reads, deletes and sharding."""
