"""P23's baseline: one unary handler that answers with ready bytes. No topic, no fold, no interceptor. On our
own wire it answers without a coroutine, as a store does for keys that memory has.

Run as `python -m tests.bench.baselines.bare_get WIRE`; prints its port. A request begins with the size of its answer, 4
bytes, little-endian.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import grpc
import uvloop

from eddyline.wire.calls.server import Server
from tests.bench.baselines.bare_wire import make_server, serve

if TYPE_CHECKING:
    from eddyline.wire.calls.call import Call

GET = "/bench.Get/Get"
ANSWER_BYTES_MAX = 1 << 20
_BYTES = bytes(ANSWER_BYTES_MAX)


async def get(request: bytes, context: object) -> bytes:
    """The handler on grpc.aio."""
    return _BYTES[: int.from_bytes(request[:4], "little")]


def get_at_once(_call: Call, request: bytes) -> bytes:
    """The same without a coroutine, on our own wire."""
    return _BYTES[: int.from_bytes(request[:4], "little")]


async def main(wire: str) -> None:
    server = make_server(wire)
    if isinstance(server, Server):
        server.add_quick_handlers("bench.Get", {"Get": get_at_once})
    get_handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(get)
    await serve(server, {"bench.Get": {"Get": get_handler}})
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
