"""Check, rebuild and repair of folds."""
