"""Topics for Spark: the data source `eddyline`, and jobs. pyspark is imported here and nowhere else."""
