"""A gRPC server on asyncio: frames (`http2`), sockets and TLS (`transport`), calls as grpc.aio has them (`calls`)."""
