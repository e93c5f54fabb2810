"""Guards and budgets of disk and memory."""
