"""Verification: fold against bucket."""
