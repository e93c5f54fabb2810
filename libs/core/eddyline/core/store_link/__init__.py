"""StoreLink protocol and its gRPC and sharded forms."""
