"""Parallel scans (Spark)."""
