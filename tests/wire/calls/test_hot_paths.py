"""Ways past a coroutine: quick handlers, messages without one, and one frame for many streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.wire.calls.call import Call, send_to_all
from eddyline.wire.calls.server import Server
from eddyline.wire.http2 import frames
from eddyline.wire.http2.limits import Limits
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_stream, unary_stream, unary_unary, until
from tests.support.wire.echo_server import echo_server
from tests.support.wire.frames import data, headers, message, request_block, settings, window_update
from tests.support.wire.raw_client import raw_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.wire.calls.context import WireContext


async def test_a_quick_handler_answers_without_a_task_or_leaves_it_to_the_handler() -> None:
    server = Server()
    tasks: list[int] = []

    def quick(call: Call, request: bytes) -> bytes | None:
        tasks.append(len(asyncio.all_tasks()))
        if request == b"slow":
            return None
        if request == b"refused":
            call.finish(7, "no")
            return None
        return b"quick " + request

    server.add_quick_handlers("t.T", {"Echo": quick})
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        call = unary_unary(channel, "/t.T/Echo")
        assert await call(b"x") == b"quick x"
        assert await call(b"slow") == b"slow"
        assert await call(b"z" * 1_000_000) == b"z" * 1_000_000
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"refused")
        assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert len(set(tasks)) == 1


async def test_a_quick_handler_may_answer_later() -> None:
    server = Server()
    waiting: list[Call] = []

    def quick(call: Call, _request: bytes) -> None:
        call.defer()
        waiting.append(call)

    server.add_quick_handlers("t.T", {"Echo": quick})
    async with asyncio.timeout(HANG_S), echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        call = unary_unary(channel, "/t.T/Echo")
        answered, failed, late = call(b"1"), call(b"2"), call(b"3", timeout=0.2)
        await until(lambda: len(waiting) == 3)
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: server.calls_open == 2)
        by_time = sorted(waiting, key=lambda one: one.is_cancelled)
        by_time[2].answer(b"too late")
        by_time[0].answer(b"later")
        by_time[1].finish(5, "none")
        codes = {await answered.code(), await failed.code()}
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND}
        await until(lambda: not server.calls_open)


async def test_an_error_of_a_quick_handler_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_call: Call, _request: bytes) -> bytes:
        raise KeyError("mine")

    server = Server()
    server.add_quick_handlers("t.T", {"Echo": fail})
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(channel, "/t.T/Echo")(b"x")
        assert failed.value.code() is grpc.StatusCode.UNKNOWN
    assert "unexpected error in a quick handler" in caplog.text


async def test_a_verdict_is_kept_for_equal_header_blocks_of_a_connection() -> None:
    checked: list[bytes] = []

    def gate(call: Call, request: bytes) -> bytes:
        if call.opening.verdict is None:
            checked.append(request)
            call.opening.verdict = "allowed"
        return request

    server = Server()
    server.add_quick_handlers("t.T", {"Echo": gate})
    async with asyncio.timeout(HANG_S), echo_server(server) as echo:
        for _ in range(2):
            async with raw_client(echo.port) as client:
                for stream_id in (1, 3, 5):
                    client.send(
                        headers(stream_id, request_block(b"/t.T/Echo", (b"key", b"k"))),
                        data(stream_id, message(b"%d" % stream_id), is_end=True),
                    )
                client.send(headers(7, request_block(b"/t.T/Echo", (b"key", b"other"))))
                client.send(data(7, message(b"7"), is_end=True))
                await client.until(lambda frame: frame.stream_id == 7 and bool(frame.flags & frames.END_STREAM))
    assert checked == [b"1", b"7", b"1", b"7"]


class Receiving:
    """A server whose handler takes messages by a function."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.got: list[bytes] = []
        self.contexts: list[WireContext] = []
        self.pauses_at = -1
        self.server = Server(limits=limits)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        self.server.add_registered_method_handlers("r.R", {"Take": handler})

    async def _serve(self, _requests: object, context: WireContext) -> None:
        ended = asyncio.Event()
        self.contexts.append(context)

        def on_message(request: bytes) -> bool:
            self.got.append(request)
            context.call.send(b"got " + request[:10])
            return len(self.got) != self.pauses_at

        context.call.receive(on_message, ended.set)
        await ended.wait()


async def test_messages_are_received_without_a_coroutine_each() -> None:
    receiving = Receiving()
    async with echo_server(receiving.server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        sent = [b"%d" % number for number in range(500)]
        answers = [one async for one in stream_stream(channel, "/r.R/Take")(iter(sent))]
        assert answers == [b"got " + one for one in sent]
        large = [bytes(900_000)] * 3
        assert len([one async for one in stream_stream(channel, "/r.R/Take")(iter(large))]) == 3


async def test_a_pause_holds_the_client_back_by_its_window() -> None:
    receiving = Receiving(Limits(stream_window_bytes=70_000))
    receiving.pauses_at = 1
    async with asyncio.timeout(HANG_S), echo_server(receiving.server) as echo, raw_client(echo.port) as client:
        client.send(headers(1, request_block(b"/r.R/Take")), *(data(1, message(bytes(9_995))) for _ in range(7)))
        await client.settle()
        assert len(receiving.got) == 1
        assert client.credit(1) == 0
        receiving.contexts[0].call.resume()
        await client.settle()
        assert len(receiving.got) == 7
        assert client.credit(1) >= 35_000
        client.send(data(1, b"", is_end=True))
        await client.until(lambda frame: frame.kind == frames.HEADERS and bool(frame.flags & frames.END_STREAM))


class Fan:
    """A server whose streams wait for what is sent to all."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.server = Server()
        self.server.add_registered_method_handlers("w.W", {"Watch": grpc.unary_stream_rpc_method_handler(self._watch)})

    async def _watch(self, _request: bytes, context: WireContext) -> AsyncIterator[bytes]:
        call = context.call
        call.open()
        self.calls.append(call)
        context.add_done_callback(lambda _: self.calls.remove(call))
        await asyncio.Event().wait()
        yield b""


async def test_a_message_for_all_is_made_once_and_those_behind_are_listed() -> None:
    fan = Fan()
    async with (
        asyncio.timeout(HANG_S),
        echo_server(fan.server) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
        raw_client(echo.port) as slow,
    ):
        calls = [unary_stream(channel, "/w.W/Watch")(b"") for _ in range(5)]
        await until(lambda: len(fan.calls) == 5)
        slow.send(settings({frames.INITIAL_WINDOW_SIZE: 30}))
        slow.send(headers(1, request_block(b"/w.W/Watch")), data(1, message(b""), is_end=True))
        await until(lambda: len(fan.calls) == 6)
        last = fan.calls[-1]
        assert send_to_all(fan.calls, b"0123456789") == []
        assert send_to_all(fan.calls, b"0123456789") == []
        assert send_to_all(fan.calls, b"0123456789") == [last]
        await slow.settle()
        assert slow.data(1) == message(b"0123456789") * 2
        for call in calls:
            assert [await call.read() for _ in range(3)] == [b"0123456789"] * 3
            call.cancel()
        await until(lambda: fan.calls == [last])


def test_a_message_for_nobody_is_made_for_nobody() -> None:
    assert send_to_all([], b"x") == []


async def test_an_error_of_a_receiving_function_ends_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_request: bytes) -> bool:
        raise KeyError("mine")

    async def serve(_requests: object, context: WireContext) -> None:
        context.call.receive(fail, lambda: None)
        await asyncio.Event().wait()

    server = Server()
    server.add_registered_method_handlers("f.F", {"Fail": grpc.stream_stream_rpc_method_handler(serve)})
    async with echo_server(server) as echo, grpc.aio.insecure_channel(echo.address) as channel:
        call = stream_stream(channel, "/f.F/Fail")(iter((b"x",)))
        assert await call.code() is grpc.StatusCode.UNKNOWN
        assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"
        await until(lambda: not echo.server.calls_open)
    assert "unexpected error in a call" in caplog.text


async def test_a_sender_below_the_mark_may_wait_for_room_too() -> None:
    waited = asyncio.Event()

    async def serve(_request: bytes, context: WireContext) -> None:
        assert context.call.send(bytes(700))
        await context.call.writable()
        waited.set()

    server = Server(limits=Limits(queue_bytes_mark=1_000))
    server.add_registered_method_handlers("s.S", {"Send": grpc.unary_stream_rpc_method_handler(serve)})
    async with asyncio.timeout(HANG_S), echo_server(server) as echo, raw_client(echo.port) as client:
        client.send(settings({frames.INITIAL_WINDOW_SIZE: 0}))
        client.send(headers(1, request_block(b"/s.S/Send")), data(1, message(b""), is_end=True))
        await until(lambda: echo.server.backlogs() and echo.server.backlogs()[0].queued_bytes)
        await client.settle()
        assert not waited.is_set()
        client.send(window_update(1, 300))
        await waited.wait()
