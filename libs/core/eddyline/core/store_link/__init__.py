"""`StoreLink` protocol, and its implementations over gRPC and over several shards."""
