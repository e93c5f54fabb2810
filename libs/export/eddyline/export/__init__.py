"""Topics to Parquet files with manifests, by pyarrow alone: for the command `eddyline export` and Spark's job `export`."""
