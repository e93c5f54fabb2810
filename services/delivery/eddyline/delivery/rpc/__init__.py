"""gRPC services."""
