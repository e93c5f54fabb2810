"""`python -m eddyline.store fsck DIR`: a complete check of a stopped data directory, without changes."""
