"""Is it still the same stream; bring fold in step."""
