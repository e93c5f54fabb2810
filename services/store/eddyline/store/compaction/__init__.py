"""Segments: seal, merge, rewrite, drop, swap."""
