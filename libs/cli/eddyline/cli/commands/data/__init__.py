"""Commands on records and values."""
