"""gRPC services: translate, validate, delegate."""
