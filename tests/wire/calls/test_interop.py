"""gRPC's interop cases by the grpc.aio client, on our server and on grpc.aio's: both answer alike."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.wire.calls.server import Server
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_stream, stream_unary, unary_stream, unary_unary, until
from tests.support.wire.echo_server import EchoServer, echo_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LARGE_REQUEST = 271_828
LARGE_ANSWER = 314_159


@pytest.fixture(params=["own", "grpc"])
async def echo(request: pytest.FixtureRequest) -> AsyncIterator[EchoServer]:
    server = Server() if request.param == "own" else grpc.aio.server()
    async with echo_server(server) as running:  # type: ignore[arg-type]  # the same methods
        yield running


@pytest.fixture
async def channel(echo: EchoServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(echo.address) as opened:
        yield opened


async def test_empty_unary(channel: grpc.aio.Channel) -> None:
    assert await unary_unary(channel, "/t.T/Echo")(b"") == b""


async def test_large_unary(channel: grpc.aio.Channel) -> None:
    for size in (LARGE_REQUEST, LARGE_ANSWER, 3_000_000):
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert await unary_unary(channel, "/t.T/Echo")(body) == body


async def test_client_streaming(channel: grpc.aio.Channel) -> None:
    sent = [bytes(size) for size in (27_182, 8, 1_828, 45_904)]
    assert await stream_unary(channel, "/t.T/Count")(iter(sent)) == b"4"


async def test_server_streaming(channel: grpc.aio.Channel) -> None:
    got = [message async for message in unary_stream(channel, "/t.T/Several")(b"300")]
    assert got == [b"%d" % number for number in range(300)]


async def test_ping_pong(channel: grpc.aio.Channel) -> None:
    call = stream_stream(channel, "/t.T/Bidi")()
    for size in (27_182, 8, 1_828, 45_904):
        await call.write(bytes(size))
        assert await call.read() == bytes(size)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_empty_stream(channel: grpc.aio.Channel) -> None:
    assert [message async for message in stream_stream(channel, "/t.T/Bidi")(iter(()))] == []


async def test_cancel_after_begin(channel: grpc.aio.Channel) -> None:
    call = stream_unary(channel, "/t.T/Count")()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_cancel_after_first_response(channel: grpc.aio.Channel) -> None:
    call = stream_stream(channel, "/t.T/Bidi")()
    await call.write(b"x")
    assert await call.read() == b"x"
    call.cancel()
    assert await call.code() is grpc.StatusCode.CANCELLED


async def test_cancelled_call_cancels_its_handler(echo: EchoServer, channel: grpc.aio.Channel) -> None:
    call = unary_unary(channel, "/t.T/Wait")(b"")
    async with asyncio.timeout(HANG_S):
        await echo.begun.wait()
        call.cancel()
        await echo.cancelled.wait()
        await until(lambda: echo.events)
    assert len(echo.events) == 1


async def test_timeout_on_sleeping_server(echo: EchoServer, channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await unary_unary(channel, "/t.T/Wait")(b"", timeout=0.2)
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(HANG_S):
        await echo.cancelled.wait()


async def test_status_code_and_message(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await unary_unary(channel, "/t.T/Status")(b"2 test status message")
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.UNKNOWN, "test status message")


async def test_special_status_message(channel: grpc.aio.Channel) -> None:
    message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await unary_unary(channel, "/t.T/Status")(b"2 " + message.encode())
    assert failed.value.details() == message


async def test_custom_metadata(channel: grpc.aio.Channel) -> None:
    sent = (("x-initial", "test_initial_metadata_value"), ("x-end-bin", b"\x0a\x0b\x0a\x0b\x0a\x0b"))
    call = unary_unary(channel, "/t.T/Echo")(b"", metadata=sent)
    await call
    assert tuple(await call.initial_metadata() or ()) == sent[:1]
    assert tuple(await call.trailing_metadata() or ()) == sent[1:]


@pytest.mark.parametrize("path", ["/t.T/Unknown", "/other.Service/Echo"])
async def test_unimplemented(channel: grpc.aio.Channel, path: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await unary_unary(channel, path)(b"")
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")


async def test_too_large_a_message(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await unary_unary(channel, "/t.T/Echo")(bytes((4 << 20) + 1))
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_many_calls_at_once(channel: grpc.aio.Channel) -> None:
    calls = [unary_unary(channel, "/t.T/Echo")(b"%d" % number) for number in range(300)]
    assert [await call for call in calls] == [b"%d" % number for number in range(300)]


async def test_large_messages_both_ways_at_once(channel: grpc.aio.Channel) -> None:
    sent = [bytes((number,)) * 200_000 for number in range(30)]
    assert [message async for message in stream_stream(channel, "/t.T/Bidi")(iter(sent))] == sent


async def test_thousands_of_calls_on_one_connection_are_no_flood(channel: grpc.aio.Channel) -> None:
    """Clients send two windows for each answer, and the server counts them."""
    echo = unary_unary(channel, "/t.T/Echo")

    async def client() -> None:
        for _ in range(200):
            await echo(b"x" * 100)

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(client())
