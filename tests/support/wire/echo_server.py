"""A server of `eddyline.wire` with the methods that its tests call, on bytes: `/t.T/Echo`, `Bidi` and others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from eddyline.wire.calls.server import Server

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping

    from eddyline.wire.calls.context import WireContext

    Behaviour = Callable[..., object]


@dataclass
class EchoServer:
    """A running server, and what its handlers noted."""

    server: Server
    port: int = 0
    events: list[object] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by `Wait` when it runs."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by `Wait` when it is cancelled."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def echo(self, request: bytes, context: WireContext) -> bytes:
        """Answer with the request, and send some of its metadata back."""
        given = dict(context.invocation_metadata())
        if (initial := given.get("x-initial")) is not None:
            await context.send_initial_metadata((("x-initial", initial),))
        if (end := given.get("x-end-bin")) is not None:
            context.set_trailing_metadata((("x-end-bin", end),))
        return request

    async def bidi(self, requests: AsyncIterator[bytes], _context: WireContext) -> AsyncIterator[bytes]:
        """Answer each message with itself."""
        async for request in requests:
            yield request

    async def count(self, requests: AsyncIterator[bytes], _context: WireContext) -> bytes:
        """Answer with the number of messages."""
        count = 0
        async for _ in requests:
            count += 1
        return b"%d" % count

    async def several(self, request: bytes, context: WireContext) -> None:
        """Write as many messages as the request says."""
        for number in range(int(request)):
            await context.write(b"%d" % number)

    async def wait(self, _request: bytes, context: WireContext) -> bytes:
        """Wait until cancelled."""
        context.add_done_callback(lambda done: self.events.append(("done", done.cancelled())))
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def names(self, _request: bytes, context: WireContext) -> bytes:
        """Answer with the common names of the client's certificate."""
        return b",".join(context.auth_context().get("x509_common_name", []))

    async def status(self, request: bytes, context: WireContext) -> bytes:
        """Abort with `code message`."""
        code, _, message = request.decode().partition(" ")
        await context.abort(next(one for one in grpc.StatusCode if one.value[0] == int(code)), message)
        raise AssertionError

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
        """Handlers by method name."""
        return {
            "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
            "Bidi": grpc.stream_stream_rpc_method_handler(self.bidi),
            "Count": grpc.stream_unary_rpc_method_handler(self.count),
            "Several": grpc.unary_stream_rpc_method_handler(self.several),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "Names": grpc.unary_unary_rpc_method_handler(self.names),
            "Status": grpc.unary_unary_rpc_method_handler(self.status),
        }


def unary(behaviour: Behaviour) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of one message each way, on bytes."""
    return grpc.unary_unary_rpc_method_handler(behaviour)


@asynccontextmanager
async def echo_server(
    server: Server | None = None,
    *,
    grace_s: float | None = 0.0,
    context: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncIterator[EchoServer]:
    """Run it, with TLS if `context` is given; it stops with `grace_s`."""
    echo = EchoServer(server or Server())
    echo.server.add_registered_method_handlers("t.T", echo.handlers())
    if context is not None:
        echo.port = echo.server.add_tls_port("127.0.0.1:0", context)
    else:
        echo.port = echo.server.add_insecure_port("127.0.0.1:0")
    await echo.server.start()
    try:
        yield echo
    finally:
        await echo.server.stop(grace_s)
