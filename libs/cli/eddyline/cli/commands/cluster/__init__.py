"""Commands on a cluster, its keys and its directories."""
