"""Output, units, input."""
