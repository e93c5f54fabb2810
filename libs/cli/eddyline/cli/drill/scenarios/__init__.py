"""One fault a file."""
