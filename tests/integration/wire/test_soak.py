"""Clients that come and go in every state: nothing of them is left, no stream, call, task, timer, descriptor or memory.

`EDDYLINE_TEST_SOAK_S` = how long each of the two runs lasts (8 s unless it says otherwise).
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import ssl
import struct
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from eddyline.wire.calls.call import Call
from eddyline.wire.calls.server import Server
from eddyline.wire.http2.connection import Http2Connection
from eddyline.wire.http2.stream import Http2Stream
from eddyline.wire.transport.connection import SocketConnection
from eddyline.wire.transport.timeouts import Timeouts
from eddyline.wire.transport.tls import TlsSession
from tests.support.certificates import Authority
from tests.support.cluster.process_figures import resident_bytes
from tests.support.wire.client import until
from tests.support.wire.echo_server import echo_server
from tests.support.wire.frames import HELLO, data, headers, message, request, request_block, rst_stream, window_update
from tests.support.wire.tls import TlsClient, server_context

if TYPE_CHECKING:
    from pathlib import Path

SOAK_S = float(os.environ.get("EDDYLINE_TEST_SOAK_S", "8"))
VISITORS = 24
"""At a time."""
GROWTH_BYTES = 48 << 20
"""Between a tenth of the time and the end. Over 18 000 visits with TLS it grew by 30 MiB until the 9 000th, and no more."""
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of a socket that closes with RST."""
OF_CONNECTIONS = (SocketConnection, Http2Connection, Http2Stream, TlsSession, Call)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(SOAK_S + 200)]


def traffic(rng: random.Random) -> bytes:
    """What a client sends on one connection: calls that end, calls that do not, and calls that are given up."""
    parts = [HELLO]
    for stream_id in range(1, rng.randrange(1, 20), 2):
        body = bytes(rng.choice((1, 100, 20_000)))
        match rng.randrange(7):
            case 0:
                parts.append(request(stream_id, body))
            case 1:
                deadline = (b"grpc-timeout", b"%dm" % rng.choice((1, 20, 60_000)))
                block = request_block(b"/t.T/Wait", deadline)
                parts.append(headers(stream_id, block) + data(stream_id, message(body), is_end=True))
            case 2:
                parts.append(headers(stream_id, request_block(b"/t.T/Bidi")) + data(stream_id, message(body)))
            case 3:
                parts.append(request(stream_id, b"3000", b"/t.T/Several"))
            case 4:
                parts.append(headers(stream_id, request_block()) + data(stream_id, message(body)[:-1]))
            case 5:
                parts.append(request(stream_id, body, b"/t.T/Wait") + rst_stream(stream_id))
            case _:
                parts.append(request(stream_id, b"3 refused", b"/t.T/Status") + window_update(0, 1_000))
    return b"".join(parts)


class Visitor:
    """Connects, sends a part of what it has, reads or not, and ends, with FIN or RST."""

    def __init__(self, port: int, rng: random.Random, authority: Authority | None) -> None:
        self._port = port
        self._rng = rng
        self._authority = authority
        self._loop = asyncio.get_running_loop()

    async def visit(self) -> None:
        """Do it once."""
        rng = self._rng
        with socket.socket() as own:
            own.setblocking(False)
            await self._loop.sock_connect(own, ("127.0.0.1", self._port))
            if rng.random() < 0.5:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
            with suppress(OSError):
                await self._talk(own)

    async def _talk(self, own: socket.socket) -> None:
        rng = self._rng
        sent = traffic(rng)
        if rng.random() < 0.5:
            sent = sent[: rng.randrange(len(sent))]
        if self._authority is not None:
            client = TlsClient(self._authority, rng.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)))
            while client.handshake():
                flight = client.output()
                if rng.random() < 0.15:
                    await self._loop.sock_sendall(own, flight[: rng.randrange(len(flight))])
                    return
                await self._loop.sock_sendall(own, flight)
                if client.is_done:
                    break
                client.take(await self._loop.sock_recv(own, 1 << 16))
            sent = client.sends(sent) if sent else b""
            if rng.random() < 0.3:
                sent += client.closes()
            elif rng.random() < 0.1:
                sent += bytes(100)
        await self._loop.sock_sendall(own, sent)
        for _ in range(rng.randrange(4)):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    if not await self._loop.sock_recv(own, 1 << 16):
                        return


class Left(NamedTuple):
    """What a process holds."""

    objects: Counter[str]
    tasks: int
    timers: int
    descriptors: int


def left() -> Left:
    """What it holds now."""
    gc.collect()
    found = gc.get_objects()
    timers = [one for one in found if isinstance(one, asyncio.TimerHandle) and not one.cancelled()]
    objects = Counter(type(one).__name__ for one in found if isinstance(one, OF_CONNECTIONS))
    return Left(objects, len(asyncio.all_tasks()), len(timers), len(os.listdir("/proc/self/fd")))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_nothing_is_left_of_clients_that_come_and_go(tmp_path: Path, tls: bool) -> None:
    authority = Authority(tmp_path / "authority") if tls else None
    context = server_context(authority.sign("server")) if authority is not None else None
    loop = asyncio.get_running_loop()
    server = Server(timeouts=Timeouts(handshake_s=0.5, sweep_s=0.1))
    async with echo_server(server, context=(lambda: context) if context is not None else None) as echo:
        before = left()
        visits = resident = 0
        end_s = loop.time() + SOAK_S

        async def keep_visiting(seed: int) -> None:
            nonlocal visits, resident
            visitor = Visitor(echo.port, random.Random(seed), authority)
            while loop.time() < end_s:
                await visitor.visit()
                visits += 1
                if not resident and loop.time() > end_s - SOAK_S * 0.9:
                    resident = resident_bytes()

        async with asyncio.TaskGroup() as group:
            for seed in range(VISITORS):
                group.create_task(keep_visiting(seed))
        counters = echo.server.counters
        await until(lambda: not (counters.connections or counters.half_open or echo.server.calls_open))
        echo.events.clear()
        # `until` has a timer of its own.
        await until(lambda: left() == before._replace(timers=before.timers + 1))
        assert not echo.server.backlogs()
        assert counters.connections_total >= visits > VISITORS
        assert counters.streams_total > visits
        assert not counters.connections_failed["INTERNAL_ERROR"]
        assert resident_bytes() - resident < GROWTH_BYTES
