"""Consumer, batches, positions, gaps, dead letters."""
