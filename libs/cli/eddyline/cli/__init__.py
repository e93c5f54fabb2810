"""The `eddyline` command: one module a verb, and the supervisor of the local cluster."""
