"""A channel over renewals: new calls use the newest credentials, calls in flight stay, and no channel is left over."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from eddyline.core.tls.files import ClientTls
from eddyline.core.transport.channel import open_channel
from eddyline.core.transport.renewed_channel import CurrentTls, ReloadingChannel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 90


async def unary(request: bytes, _context: object) -> bytes:
    return request.upper()


async def answers(request: bytes, _context: object) -> AsyncIterator[bytes]:
    yield request.upper()
    yield b"END"


async def gathered(requests: AsyncIterator[bytes], _context: object) -> bytes:
    return b"".join([request async for request in requests]).upper()


async def echoes(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request.upper()


class Renewed:
    """A channel to a server that echoes, and what was opened for it."""

    def __init__(self, address: str) -> None:
        self.held = CurrentTls(ClientTls(b"0"))
        self._address = address
        self._opened: list[grpc.aio.Channel] = []
        self.channel = ReloadingChannel(self.held, self._open)

    @property
    def open(self) -> list[bool]:
        """Of each that was opened: whether it still is."""
        return [channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN for channel in self._opened]

    def renew(self) -> None:
        self.held.newest = ClientTls(b"%d" % len(self._opened))

    def _open(self, _tls: ClientTls) -> grpc.aio.Channel:
        channel = open_channel(self._address, own_connection=True)
        self._opened.append(channel)
        return channel


@asynccontextmanager
async def renewed() -> AsyncIterator[Renewed]:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(unary),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(answers),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(gathered),
        "StreamStream": grpc.stream_stream_rpc_method_handler(echoes),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            made = Renewed(f"127.0.0.1:{port}")
            async with made.channel:
                yield made
    finally:
        await server.stop(0)


async def test_every_kind_of_call_works_before_and_after_a_renewal() -> None:
    async with renewed() as made:
        channel = made.channel
        one, many = channel.unary_unary("/t.T/UnaryUnary"), channel.unary_stream("/t.T/UnaryStream")
        joined, both = channel.stream_unary("/t.T/StreamUnary"), channel.stream_stream("/t.T/StreamStream")
        for _ in range(3):
            assert await one(b"a") == b"A"
            assert [answer async for answer in many(b"a")] == [b"A", b"END"]
            assert await joined(iter([b"a", b"b"])) == b"AB"
            assert [answer async for answer in both(iter([b"a", b"b"]))] == [b"A", b"B"]
            made.renew()
        await one(b"a")
        await made.held.close_idle()
        assert made.open == [False, False, False, True]


async def test_call_in_flight_continues_and_its_channel_is_closed_after_it() -> None:
    async with renewed() as made:
        both, one = made.channel.stream_stream("/t.T/StreamStream"), made.channel.unary_unary("/t.T/UnaryUnary")
        call = both()
        await call.write(b"a")
        assert await call.read() == b"A"
        for _ in range(3):
            made.renew()
            assert await one(b"x") == b"X"
        await made.held.close_idle()
        assert made.open == [True, False, False, True]
        await call.write(b"b")
        assert await call.read() == b"B"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await call.code()
        await made.held.close_idle()
        assert made.open == [False, False, False, True]


async def test_call_that_is_cancelled_or_failed_is_counted_out() -> None:
    async with renewed() as made:
        both = made.channel.stream_stream("/t.T/StreamStream")
        call = both()
        await call.write(b"a")
        assert await call.read() == b"A"
        with pytest.raises(grpc.aio.AioRpcError):
            await made.channel.unary_unary("/t.T/Nowhere")(b"x")
        made.renew()
        assert await made.channel.unary_unary("/t.T/UnaryUnary")(b"x") == b"X"
        await made.held.close_idle()
        assert made.open == [True, True]
        call.cancel()
        await call.code()
        await made.held.close_idle()
        assert made.open == [False, True]


async def test_without_a_call_no_channel_is_opened() -> None:
    async with renewed() as made:
        for _ in range(3):
            made.renew()
        assert made.open == [True]


async def test_close_ends_calls_of_before_too() -> None:
    async with renewed() as made:
        both = made.channel.stream_stream("/t.T/StreamStream")
        calls = []
        for _ in range(2):
            calls.append(call := both())
            await call.write(b"a")
            assert await call.read() == b"A"
            made.renew()
        await made.channel.close()
        for call in calls:
            assert await call.code() is grpc.StatusCode.CANCELLED
