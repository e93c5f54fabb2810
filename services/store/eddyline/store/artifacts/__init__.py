"""Artifacts: folds as they were at one seq, apart from any store; writing, keeping, and taking them in."""
