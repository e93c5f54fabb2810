"""gRPC calls for handlers and interceptors written for grpc.aio, and ways past a coroutine for hot methods."""
