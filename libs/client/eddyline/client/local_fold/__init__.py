"""A fold in one file at an edge node."""
