"""State of a store as of its last checkpoint."""
