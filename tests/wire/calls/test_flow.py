"""Windows that follow the handler: what it does not read is bounded, and what it reads is credited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.wire.calls.server import Server
from eddyline.wire.http2 import frames
from eddyline.wire.http2.limits import Limits
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_stream, until
from tests.support.wire.echo_server import EchoServer, echo_server
from tests.support.wire.frames import data, headers, message, request_block, settings, window_update
from tests.support.wire.raw_client import raw_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.wire.calls.context import WireContext

WINDOW = 70_000
LIMITS = Limits(stream_window_bytes=WINDOW, message_bytes_max=1 << 20, assembling_bytes_max=1 << 20)


class Held:
    """A server whose handler reads a message for each release of its gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(0)
        self.read: list[int] = []
        self.calls: list[WireContext] = []
        self.server = Server(limits=LIMITS)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(self._take)
        self.server.add_registered_method_handlers("h.H", {"Take": handler})

    async def _take(self, _requests: object, context: WireContext) -> bytes:
        self.calls.append(context)
        while True:
            await self.gate.acquire()
            request = await context.read()
            if not isinstance(request, bytes):
                return b"%d" % sum(self.read)
            self.read.append(len(request))


@pytest.fixture
async def held() -> AsyncIterator[tuple[Held, EchoServer]]:
    one = Held()
    async with asyncio.timeout(HANG_S), echo_server(one.server) as echo:
        yield one, echo


async def test_a_handler_that_does_not_read_holds_a_window(held: tuple[Held, EchoServer]) -> None:
    handler, echo = held
    async with raw_client(echo.port) as client:
        client.send(headers(1, request_block(b"/h.H/Take")))
        for _ in range(7):
            client.send(data(1, message(bytes(9_995))))
        await client.settle()
        assert client.credit(1) == 0
        assert handler.calls[0].call.stream.unread == WINDOW
        handler.gate.release()
        await until(lambda: handler.read)
        await client.settle()
        assert client.credit(1) == 0, "less than half of the window"
        for _ in range(3):
            handler.gate.release()
        await until(lambda: len(handler.read) == 4)
        await client.settle()
        assert client.credit(1) == 40_000


async def test_a_message_larger_than_the_window_is_credited_while_it_is_waited_for(
    held: tuple[Held, EchoServer],
) -> None:
    handler, echo = held
    whole = message(bytes(300_000))
    async with raw_client(echo.port) as client:
        client.send(headers(1, request_block(b"/h.H/Take")))
        sent = 0
        while sent < WINDOW:
            part = whole[sent : min(sent + 16_384, WINDOW)]
            client.send(data(1, part))
            sent += len(part)
        await client.settle()
        assert client.credit(1) == 0
        handler.gate.release()
        while sent < len(whole):
            await until(lambda: True)
            await client.settle()
            room = min(WINDOW + client.credit(1) - sent, 16_384)
            client.send(data(1, whole[sent : sent + room]))
            sent += len(whole[sent : sent + room])
        client.send(data(1, b"", is_end=True))
        handler.gate.release()
        await client.until(lambda frame: frame.kind == frames.DATA)
        assert client.data(1) == message(b"300000")
        http2 = handler.calls[0].call.stream.connection
        assert (http2.unread, http2.assembling_bytes) == (0, 0)


async def test_incomplete_messages_of_a_connection_are_bounded(held: tuple[Held, EchoServer]) -> None:
    handler, echo = held
    part = message(bytes(1 << 20))[:16_384]
    async with raw_client(echo.port) as client:
        for stream_id in range(1, 141, 2):
            client.send(headers(stream_id, request_block(b"/h.H/Take")), data(stream_id, part))
        await client.until(lambda frame: frame.kind == frames.HEADERS)
        refused = [frame for frame in client.frames if frame.kind == frames.HEADERS]
        assert refused and all(b"grpc-status\x018" in frame.payload for frame in refused)
        http2 = handler.calls[0].call.stream.connection
        assert http2.assembling_bytes <= LIMITS.assembling_bytes_max


@pytest.mark.parametrize(("increment", "initial"), [(1, 3), (7, 100), (5_000, 0)])
async def test_odd_windows_of_a_client_give_all_messages_in_order(increment: int, initial: int) -> None:
    count = 500 if increment > 1 else 20
    async with asyncio.timeout(HANG_S), echo_server() as echo, raw_client(echo.port) as client:
        client.send(settings({frames.INITIAL_WINDOW_SIZE: initial}))
        client.send(headers(1, request_block(b"/t.T/Several")), data(1, message(b"%d" % count), is_end=True))
        expected = b"".join(message(b"%d" % number) for number in range(count))
        given = initial
        while given < len(expected):
            while len(client.data(1)) < given:
                await client.next_frame()
            assert len(client.data(1)) == given
            client.send(window_update(1, increment))
            given += increment
        await client.until(lambda frame: frame.kind == frames.HEADERS and bool(frame.flags & frames.END_STREAM))
        assert client.data(1) == expected


async def test_a_writer_waits_for_its_client_and_goes_on() -> None:
    """The queue stays at its mark while the client gives no window."""
    limits = Limits(queue_bytes_mark=1_000, queue_bytes_max=2_000)
    async with asyncio.timeout(HANG_S), echo_server(Server(limits=limits)) as echo, raw_client(echo.port) as client:
        client.send(settings({frames.INITIAL_WINDOW_SIZE: 0}))
        client.send(headers(1, request_block(b"/t.T/Several")), data(1, message(b"5000"), is_end=True))
        await until(lambda: echo.server.backlogs() and echo.server.backlogs()[0].queued_bytes >= 1_000)
        (backlog,) = echo.server.backlogs()
        assert backlog.queued_bytes < 1_020
        client.send(window_update(1, 1 << 20))
        await client.until(lambda frame: bool(frame.kind == frames.HEADERS and frame.flags & frames.END_STREAM))
        assert client.data(1) == b"".join(message(b"%d" % number) for number in range(5_000))


async def test_a_status_waits_for_the_end_of_its_request() -> None:
    """The grpc.aio client reports INTERNAL if its stream ends while it sends."""

    async def refuse(_requests: object, context: WireContext) -> None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    server = Server()
    server.add_registered_method_handlers("r.R", {"Refuse": grpc.stream_stream_rpc_method_handler(refuse)})
    async with asyncio.timeout(HANG_S), echo_server(server) as echo, raw_client(echo.port) as client:
        client.send(headers(1, request_block(b"/r.R/Refuse")), data(1, message(b"x")))
        client.send(headers(3, request_block(b"/r.R/Refuse")), data(3, message(b"x"), is_end=True))
        await client.until(lambda frame: frame.stream_id == 3)
        assert client.ended(3) and not client.ended(1)
        client.send(data(1, message(b"y")), data(1, message(b"z"), is_end=True))
        await client.until(lambda frame: frame.stream_id == 1)
        assert client.ended(1)
        client.send(headers(5, request_block(b"/r.R/Refuse")))
        await client.until(lambda frame: frame.stream_id == 5 and frame.kind == frames.RST_STREAM)
        assert client.ended(5)
        async with grpc.aio.insecure_channel(echo.address) as channel:
            for count in range(1, 30):
                call = stream_stream(channel, "/r.R/Refuse")(iter([b"a"] * count))
                assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
