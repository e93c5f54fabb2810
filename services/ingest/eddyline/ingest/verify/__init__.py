"""Fold against bucket."""
