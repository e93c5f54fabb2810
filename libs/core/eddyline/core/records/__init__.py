"""Record, batch, column: the data model in memory."""
