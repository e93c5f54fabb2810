"""What serves a baseline: grpc.aio's server, or that of `eddyline.wire` with the bounds of a role's. No interceptors.

Handlers are the same coroutines on both. Where a role's method on its own wire goes past coroutines, the baseline's does so
too, and says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from eddyline.core.server.wire_own import LIMITS
from eddyline.wire.calls.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Handlers = Mapping[str, grpc.RpcMethodHandler[Any, Any]]


def make_server(wire: str, *, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Server:
    """Make the server for `grpc` or `own`; `options` are grpc.aio's."""
    return Server(limits=LIMITS) if wire == "own" else grpc.aio.server(options=options)


async def serve(server: grpc.aio.Server, services: Mapping[str, Handlers], *, listen: str = "127.0.0.1:0") -> None:
    """Serve handlers by service and method, by default on a free port, and print the port."""
    for name, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, dict(handlers)),))
    port = server.add_insecure_port(listen)
    await server.start()
    print(port, flush=True)
