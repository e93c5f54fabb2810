"""gRPC services: translate, validate, delegate; protobuf stops here."""
