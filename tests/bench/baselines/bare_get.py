"""P23's baseline: one unary handler that answers with ready bytes. No topic, no fold, no interceptor.

Run as `python -m tests.bench.baselines.bare_get`; prints its port. A request begins with the size of its answer, 4 bytes,
little-endian.
"""

from __future__ import annotations

import grpc
import uvloop

GET = "/bench.Get/Get"
ANSWER_BYTES_MAX = 1 << 20
_BYTES = bytes(ANSWER_BYTES_MAX)


async def get(request: bytes, context: object) -> bytes:
    """The handler."""
    return _BYTES[: int.from_bytes(request[:4], "little")]


async def main() -> None:
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Get": grpc.unary_unary_rpc_method_handler(get)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Get", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main())
