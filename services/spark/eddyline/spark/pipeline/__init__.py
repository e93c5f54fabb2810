"""`make pipeline`: the demo's history to Parquet, and what it says of certificates and changes, in tables and pictures."""
