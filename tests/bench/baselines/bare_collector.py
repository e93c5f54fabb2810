"""A collector that takes traces and metrics by OTLP and keeps nothing: what an exporter costs its process, and nobody else.

Run as `python -m tests.bench.baselines.bare_collector`; prints its port.
"""

from __future__ import annotations

import grpc
import uvloop

EXPORTS = ("trace.v1.TraceService", "metrics.v1.MetricsService")


async def take(_request: bytes, _context: object) -> bytes:
    """All of it is taken: an empty answer says so."""
    return b""


async def main() -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    export: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(take)
    for service in EXPORTS:
        name = f"opentelemetry.proto.collector.{service}"
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": export}),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
