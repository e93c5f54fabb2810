"""Artifacts: copies of a fold as of one seq, independent of any store; export, storage and import."""
