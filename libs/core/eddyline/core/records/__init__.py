"""Records in memory: row, batch, column, limits."""
