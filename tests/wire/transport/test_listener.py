"""Bounds of connections on real sockets, and what is left after they have gone."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest
import uvloop

from eddyline.wire.calls.call import Call
from eddyline.wire.calls.server import Server
from eddyline.wire.http2 import frames
from eddyline.wire.http2.connection import KEEPALIVE_PING
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.limits import Limits
from eddyline.wire.http2.stream import Http2Stream
from eddyline.wire.transport.connection import SocketConnection
from eddyline.wire.transport.timeouts import Timeouts
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_stream, unary_unary, until
from tests.support.wire.echo_server import EchoServer, echo_server
from tests.support.wire.frames import HELLO, headers, request_block

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

RECORDINGS = Path(__file__).parents[2] / "golden" / "wire"


@pytest.fixture
async def echo() -> AsyncIterator[EchoServer]:
    async with asyncio.timeout(HANG_S), echo_server() as running:
        yield running


async def is_closed(port: int, sent: bytes = b"") -> bool:
    """Whether a connection is closed by the server after it has sent its first bytes, if any."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        while await reader.read(65_536):
            pass
    except ConnectionError:
        pass
    writer.close()
    return True


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_that_answered_while_the_loop_stood_still_keeps_its_connection(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    trigger, other_end = socket.socketpair()

    async def check() -> None:
        server = Server(timeouts=Timeouts(keepalive_s=0.1, keepalive_timeout_s=0.4, sweep_s=0.05))
        async with asyncio.timeout(HANG_S), echo_server(server) as echo:
            loop = asyncio.get_running_loop()
            with socket.create_connection(("127.0.0.1", echo.port)) as client:
                client.setblocking(False)
                client.send(HELLO)
                received = b""
                while KEEPALIVE_PING not in received:
                    received += await loop.sock_recv(client, 65_536)
                answered = asyncio.Event()

                def answer_and_stand_still() -> None:
                    loop.remove_reader(trigger)
                    client.send(encode_frame(frames.PING, 1, 0, KEEPALIVE_PING))
                    stand_still(1.0)
                    answered.set()

                # In the callback of a socket: uvloop runs timers before it looks at sockets again.
                loop.add_reader(trigger, answer_and_stand_still)
                other_end.send(b"x")
                await answered.wait()
                received = b""
                while KEEPALIVE_PING not in received:  # the next one
                    part = await loop.sock_recv(client, 65_536)
                    assert part, "the connection was closed"
                    received += part
                assert echo.server.counters.keepalive_timeouts == 0
                await until(lambda: echo.server.counters.keepalive_timeouts == 1)

    with trigger, other_end, asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(check())


def stand_still(seconds: float) -> None:
    """Keep the loop from running, as a machine that hangs does."""
    threading.Event().wait(seconds)


async def test_connections_above_the_bound_are_closed_at_once() -> None:
    async with asyncio.timeout(HANG_S), echo_server(Server(connections_max=2)) as echo:
        open_ones = [await asyncio.open_connection("127.0.0.1", echo.port) for _ in range(2)]
        await until(lambda: echo.server.counters.connections == 2)
        assert await is_closed(echo.port)
        assert echo.server.counters.connections_refused == 1
        open_ones[0][1].close()
        await until(lambda: echo.server.counters.connections == 1)
        async with grpc.aio.insecure_channel(echo.address) as channel:
            assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"
        open_ones[1][1].close()


async def test_half_open_connections_are_bounded_apart_from_the_others() -> None:
    async with (
        asyncio.timeout(HANG_S),
        echo_server(Server(half_open_max=2, timeouts=Timeouts(half_open_s=HANG_S))) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
    ):
        assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"
        silent = [await asyncio.open_connection("127.0.0.1", echo.port) for _ in range(2)]
        await until(lambda: echo.server.counters.half_open == 2)
        assert await is_closed(echo.port)
        assert await unary_unary(channel, "/t.T/Echo")(b"y") == b"y"
        for _, writer in silent:
            writer.close()
        await until(lambda: echo.server.counters.half_open == 0)


async def test_silent_connections_give_their_place_to_clients_that_speak() -> None:
    server = Server(half_open_max=2, timeouts=Timeouts(half_open_s=0.0))
    async with asyncio.timeout(HANG_S), echo_server(server) as echo:
        counters = server.counters
        silent = [await asyncio.open_connection("127.0.0.1", echo.port) for _ in range(5)]
        await until(lambda: counters.connections_total == 5 and counters.connections == 2)
        assert (counters.half_open, counters.handshakes_failed, counters.connections_refused) == (2, 3, 0)
        async with grpc.aio.insecure_channel(echo.address) as channel:
            assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"
            assert (counters.half_open, counters.handshakes_failed) == (1, 4)
        for _, writer in silent:
            writer.close()
        await until(lambda: counters.half_open == counters.connections == 0)


async def test_a_vanished_client_is_ended_by_keepalive() -> None:
    timeouts = Timeouts(keepalive_s=0.05, keepalive_timeout_s=0.05, sweep_s=0.02)
    async with asyncio.timeout(HANG_S), echo_server(Server(timeouts=timeouts)) as echo:
        assert await is_closed(echo.port, HELLO)
        assert echo.server.counters.keepalive_timeouts == 1


async def test_an_old_connection_is_replaced_without_a_failed_call() -> None:
    timeouts = Timeouts(age_s=0.05, age_grace_s=HANG_S, sweep_s=0.01)
    async with (
        asyncio.timeout(HANG_S),
        echo_server(Server(timeouts=timeouts)) as echo,
        grpc.aio.insecure_channel(echo.address) as channel,
    ):
        counters = echo.server.counters
        while counters.connections_total < 4:
            assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"


async def _come_and_go(echo: EchoServer, number: int) -> None:
    async with grpc.aio.insecure_channel(echo.address, options=(("a", number),)) as channel:
        await unary_unary(channel, "/t.T/Echo")(b"x", timeout=1_000)
        call = stream_stream(channel, "/t.T/Bidi")(timeout=1_000)
        await call.write(b"x")
        await call.read()
        if number % 2:
            call.cancel()
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    writer.write(HELLO + headers(1, request_block(b"/t.T/Bidi", (b"grpc-timeout", b"99H"))))
    await reader.read(10)
    writer.transport.abort()


async def test_nothing_is_left_of_connections_that_come_and_go() -> None:
    """Streams, calls and connections are collected, tasks end, and no timer keeps them."""
    async with asyncio.timeout(HANG_S), echo_server() as echo:
        tasks = len(asyncio.all_tasks())
        for number in range(20):
            await _come_and_go(echo, number)
        gc.collect()
        await until(lambda: echo.server.counters.connections == echo.server.calls_open == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: not gc.collect() and not _kept())


def _kept() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, Call | Http2Stream | SocketConnection)]


async def test_mutated_recordings_leave_the_server_serving(echo: EchoServer, caplog: pytest.LogCaptureFixture) -> None:
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    recorded = (RECORDINGS / "python.bin").read_bytes()[:3_000]
    rng = Random(5)
    for _ in range(150):
        mutant = bytearray(recorded)
        for _ in range(rng.randrange(6)):
            mutant[rng.randrange(len(HELLO), len(mutant))] = rng.randrange(256)
        with socket.create_connection(("127.0.0.1", echo.port)) as client:
            client.sendall(mutant)
        await asyncio.sleep(0)
    await until(lambda: echo.server.counters.connections == echo.server.calls_open == 0)
    async with grpc.aio.insecure_channel(echo.address) as channel:
        assert await unary_unary(channel, "/t.T/Echo")(b"x") == b"x"
    assert not failures
    assert not caplog.records


async def test_a_client_that_reads_nothing_holds_a_bounded_amount() -> None:
    limits = Limits(queue_bytes_mark=10_000, queue_bytes_max=20_000)
    async with asyncio.timeout(HANG_S), echo_server(Server(limits=limits)) as echo:
        _, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        body = b"\0\0\0\0\x0a" + b"1000000000"
        writer.write(HELLO + headers(1, request_block(b"/t.T/Several")) + b"\0\0\x0f\0\1\0\0\0\1" + body)
        await until(lambda: echo.server.backlogs() and echo.server.backlogs()[0].queued_bytes >= 10_000)
        (backlog,) = echo.server.backlogs()
        assert backlog.queued_bytes <= 20_000
        assert backlog.uncredited_bytes == 65_535
        writer.transport.abort()
        await until(lambda: not echo.server.calls_open)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_that_come_while_it_stops_are_closed(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_stop_while_connections_come())


async def _stop_while_connections_come() -> None:
    for turns in range(6):
        async with echo_server() as echo:
            clients = [socket.create_connection(("127.0.0.1", echo.port)) for _ in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
        for _ in range(6):
            await asyncio.sleep(0)
        assert echo.server.counters.connections == 0
        for client in clients:
            client.close()
