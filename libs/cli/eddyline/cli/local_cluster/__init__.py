"""The supervisor of `eddyline up`."""
