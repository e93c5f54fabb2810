"""Check, rebuild, repair a fold."""
