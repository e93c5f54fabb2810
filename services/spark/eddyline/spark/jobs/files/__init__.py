"""Parquet and JSON files of jobs."""
