"""Topics, sources, KV, artifacts, status."""
