"""`python -m eddyline.store fsck DIR`: everything that a stopped data directory holds, looked at; nothing is changed."""
