"""Commands on topics and folds."""
