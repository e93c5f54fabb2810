"""gRPC channels, statuses, handler helpers."""
