"""Jobs: each a module with a function `run`, started by `python -m` or `spark-submit`."""
