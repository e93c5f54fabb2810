"""A service of four methods, one of each kind of call, whose handlers are given by the test; on a real server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from eddyline.core.server.server import RoleServer, make_server
from eddyline.core.transport.channel import open_channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SERVICE: Final = "eddyline.test.Kinds"


@dataclass(frozen=True, slots=True)
class Kinds:
    """The running server and a client of it. Each call sends one message and gives all answers."""

    server: RoleServer
    channel: grpc.aio.Channel
    calls: dict[str, Callable[[bytes], AsyncIterator[bytes]]]


@asynccontextmanager
async def serving(
    handler: Callable[[bytes, int], Awaitable[bytes]], *, decode: Callable[[bytes], bytes] | None = None
) -> AsyncIterator[Kinds]:
    """Serve `handler(request, n)`, which gives the n-th answer, for all four kinds; streams ask it until it raises.

    `decode` stands for generated code's request deserializer.
    """
    server = make_server("127.0.0.1:0", new_id=lambda: "the-id")
    server.grpc.add_generic_rpc_handlers((_generic(handler, decode),))
    address = await server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            yield Kinds(server, channel, _calls(channel))
    finally:
        await server.stop(0)


def _generic(
    handler: Callable[[bytes, int], Awaitable[bytes]], decode: Callable[[bytes], bytes] | None
) -> grpc.GenericRpcHandler:
    async def unary(request: bytes, _context: object) -> bytes:
        return await handler(request, 0)

    async def unary_of_stream(requests: AsyncIterator[bytes], _context: object) -> bytes:
        async for request in requests:
            return await handler(request, 0)
        return b""

    async def stream(request: bytes, _context: object) -> AsyncIterator[bytes]:
        number = 0
        while True:
            yield await handler(request, number)
            number += 1

    async def stream_of_stream(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        number = 0
        async for request in requests:
            while True:
                yield await handler(request, number)
                number += 1

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "UnaryUnary": grpc.unary_unary_rpc_method_handler(unary, decode),
            "StreamUnary": grpc.stream_unary_rpc_method_handler(unary_of_stream, decode),
            "UnaryStream": grpc.unary_stream_rpc_method_handler(stream, decode),
            "StreamStream": grpc.stream_stream_rpc_method_handler(stream_of_stream, decode),
        },
    )


def _calls(channel: grpc.aio.Channel) -> dict[str, Callable[[bytes], AsyncIterator[bytes]]]:
    unary_unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/UnaryUnary")
    stream_unary: grpc.aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(f"/{SERVICE}/StreamUnary")
    unary_stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/UnaryStream")
    stream_stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/StreamStream")

    async def one(request: bytes) -> AsyncIterator[bytes]:
        yield await unary_unary(request, timeout=10)

    async def one_of_stream(request: bytes) -> AsyncIterator[bytes]:
        yield await stream_unary(iter([request]), timeout=10)

    async def many(request: bytes) -> AsyncIterator[bytes]:
        async for answer in unary_stream(request, timeout=10):
            yield answer

    async def many_of_stream(request: bytes) -> AsyncIterator[bytes]:
        async for answer in stream_stream(iter([request]), timeout=10):
            yield answer

    return {"unary_unary": one, "stream_unary": one_of_stream, "unary_stream": many, "stream_stream": many_of_stream}
