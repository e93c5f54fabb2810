"""The context of a call, from its handler's side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from eddyline.wire.calls.server import Server
from eddyline.wire.http2.limits import Limits
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_unary, unary_stream, unary_unary, until
from tests.support.wire.echo_server import echo_server, unary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from eddyline.wire.calls.context import WireContext

    Behaviour = Callable[[bytes, WireContext], Awaitable[bytes | None]]


async def called(behaviour: Behaviour, **arguments: Any) -> grpc.aio.UnaryUnaryCall[bytes, bytes]:
    """Call a handler once, and return the call when it is over."""
    server = Server()
    server.add_registered_method_handlers("o.O", {"One": unary(behaviour)})
    async with (
        asyncio.timeout(HANG_S),
        echo_server(server) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
    ):
        call = unary_unary(channel, "/o.O/One")(b"request", **arguments)
        await call.code()
        return call


async def test_metadata_peer_and_deadline_are_seen() -> None:
    seen: list[object] = []

    async def note(request: bytes, context: WireContext) -> bytes:
        metadata = dict(context.invocation_metadata())
        assert context.invocation_metadata()[0].key
        remaining = context.time_remaining()
        assert remaining is not None and 0 < remaining <= HANG_S
        seen.extend((request, metadata["a"], metadata["b-bin"], context.peer().startswith("ipv4:127.0.0.1:")))
        seen.extend((context.auth_context(), context.peer_identities(), context.done(), context.cancelled()))
        return b""

    await called(note, timeout=HANG_S, metadata=(("a", "b"), ("b-bin", b"\0\1")))
    assert seen == [b"request", "b", b"\0\1", True, {}, None, False, False]


async def test_a_call_without_a_deadline_has_no_time_remaining() -> None:
    async def note(_request: bytes, context: WireContext) -> bytes:
        assert context.time_remaining() is None
        return b""

    assert await (await called(note)).code() is grpc.StatusCode.OK


async def test_a_status_that_is_set_is_sent_without_a_message() -> None:
    async def set_status(_request: bytes, context: WireContext) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("gone")
        context.set_trailing_metadata((("a", "b"),))
        assert (context.code(), context.details()) == (grpc.StatusCode.NOT_FOUND, "gone")
        return b"ignored"

    call = await called(set_status)
    assert (await call.code(), await call.details()) == (grpc.StatusCode.NOT_FOUND, "gone")
    assert tuple(await call.trailing_metadata() or ()) == (("a", "b"),)


async def test_an_abort_cannot_be_swallowed() -> None:
    seen: list[str] = []

    async def swallow(_request: bytes, context: WireContext) -> bytes:
        try:
            await context.abort(grpc.StatusCode.ABORTED, "first")
        except grpc.aio.AbortError:
            seen.append("raised")
        assert context.done()
        with pytest.raises(grpc.aio.AbortError):
            await context.write(b"x")
        with pytest.raises(grpc.aio.UsageError):
            await context.abort(grpc.StatusCode.INTERNAL, "second")
        return b"ignored"

    call = await called(swallow)
    assert seen == ["raised"]
    assert (await call.code(), await call.details()) == (grpc.StatusCode.ABORTED, "first")


async def test_details_of_a_status_travel_as_bytes() -> None:
    async def abort(_request: bytes, context: WireContext) -> bytes:
        trailing = (("grpc-status-details-bin", b"\x08\x05\0\xff"),)
        await context.abort(grpc.StatusCode.NOT_FOUND, "gone", trailing)
        raise AssertionError

    call = await called(abort)
    assert tuple(await call.trailing_metadata() or ()) == (("grpc-status-details-bin", b"\x08\x05\0\xff"),)


async def test_initial_metadata_is_sent_once() -> None:
    async def twice(_request: bytes, context: WireContext) -> bytes:
        await context.send_initial_metadata((("a", "b"),))
        with pytest.raises(grpc.aio.UsageError):
            await context.send_initial_metadata(())
        return b""

    call = await called(twice)
    assert tuple(await call.initial_metadata() or ()) == (("a", "b"),)
    assert await call.code() is grpc.StatusCode.OK


async def test_metadata_that_cannot_be_sent_fails_the_call(caplog: pytest.LogCaptureFixture) -> None:
    async def wrong(_request: bytes, context: WireContext) -> bytes:
        context.set_trailing_metadata((("a", "line\nbreak"),))
        return b""

    assert await (await called(wrong)).code() is grpc.StatusCode.UNKNOWN
    assert "printable ASCII" in caplog.text


async def test_a_write_to_a_client_that_has_gone_is_an_error_of_grpc() -> None:
    raised: list[BaseException] = []

    async def stubborn(_request: bytes, context: WireContext) -> None:
        await context.write(b"first")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert context.cancelled() and context.done()
            try:
                await context.write(b"late")
            except grpc.aio.BaseError as error:
                raised.append(error)
            raise

    server = Server()
    server.add_registered_method_handlers("o.O", {"One": grpc.unary_stream_rpc_method_handler(stubborn)})
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        call = unary_stream(channel, "/o.O/One")(b"")
        await call.read()
        call.cancel()
        await until(lambda: raised)
    assert isinstance(raised[0], grpc.aio.InternalError)


async def test_done_callbacks_run_once_when_the_call_is_over(caplog: pytest.LogCaptureFixture) -> None:
    done: list[object] = []

    def fail(_context: WireContext) -> None:
        raise KeyError("mine")

    async def add(_request: bytes, context: WireContext) -> bytes:
        context.add_done_callback(fail)
        context.add_done_callback(lambda given: done.append((given is context, given.cancelled())))
        assert not done
        return b""

    assert await (await called(add)).code() is grpc.StatusCode.OK
    assert done == [(True, False)]
    assert "a callback of a call failed" in caplog.text


async def test_an_iterator_of_answers_is_closed_before_the_call_ends() -> None:
    closed = asyncio.Event()

    async def answers(_request: bytes, _context: WireContext) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 10_000
        finally:
            closed.set()

    server = Server()
    server.add_registered_method_handlers("o.O", {"One": grpc.unary_stream_rpc_method_handler(answers)})
    async with (
        asyncio.timeout(HANG_S),
        echo_server(server) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
    ):
        call = unary_stream(channel, "/o.O/One")(b"")
        await call.read()
        call.cancel()
        await closed.wait()
        await until(lambda: not echo.server.calls_open)


async def test_codecs_of_a_handler_are_used() -> None:
    async def add(requests: AsyncIterator[int], context: WireContext) -> int:
        total = 0
        async for request in requests:
            total += request
        assert await context.read() is grpc.aio.EOF
        return total

    server = Server()
    handler: grpc.RpcMethodHandler[int, int] = grpc.stream_unary_rpc_method_handler(
        add, int, lambda number: b"%d" % number
    )
    server.add_registered_method_handlers("o.O", {"One": handler})
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        assert await stream_unary(channel, "/o.O/One")(iter((b"1", b"2", b"40"))) == b"43"


async def test_an_answer_above_its_bound_is_refused_and_a_large_one_sent() -> None:
    async def answer(request: bytes, _context: WireContext) -> bytes:
        return bytes(int(request))

    server = Server(limits=Limits(sent_message_bytes_max=20 << 20))
    server.add_registered_method_handlers("o.O", {"One": unary(answer)})
    options = (("grpc.max_receive_message_length", -1),)
    async with (
        echo_server(server) as echo,
        grpc.aio.insecure_channel(echo.address, options=options) as channel,
    ):
        call = unary_unary(channel, "/o.O/One")
        assert len(await call(b"%d" % (20 << 20))) == 20 << 20
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"%d" % ((20 << 20) + 1))
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
