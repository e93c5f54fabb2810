"""gRPC services of delivery."""
