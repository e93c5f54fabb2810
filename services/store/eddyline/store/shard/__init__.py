"""The open shard: its API, composition, life, start-up errors."""
