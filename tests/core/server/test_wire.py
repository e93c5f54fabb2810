"""The two wires of a role's server: equal bounds, TLS, age, drain; what only one of them shows."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2

from eddyline.core.runtime.settings import WIRES, CommonSettings, SettingsError
from eddyline.core.server.server import make_server
from eddyline.core.server.wire import CALLS_MAX, CONNECTION_GRACE, HANDSHAKE_MS_MAX, Backlog
from eddyline.core.server.wire_grpc import SERVER_OPTIONS
from eddyline.core.server.wire_own import LIMITS
from eddyline.core.telemetry.server_metrics import ServerCounts
from eddyline.core.transport.channel import CHANNEL_OPTIONS, open_channel
from tests.support.hang import HANG_S
from tests.support.store.served import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.server.server import RoleServer

SERVICE: Final = "eddyline.test.Waits"
CHUNK: Final = bytes(50_000)


class Waits:
    """Handlers that end when the test says so; their contexts."""

    def __init__(self, server: RoleServer) -> None:
        self.contexts: list[grpc.aio.ServicerContext[bytes, bytes]] = []
        self.released = asyncio.Event()
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "One": grpc.unary_unary_rpc_method_handler(self.one),
            "Peer": grpc.unary_unary_rpc_method_handler(self.peer),
            "Flood": grpc.unary_stream_rpc_method_handler(self.flood),
        }
        server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    async def one(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.contexts.append(context)
        await self.released.wait()
        return request

    async def peer(self, _request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return context.peer().encode()

    async def flood(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        self.contexts.append(context)
        for _ in range(int(request)):
            yield CHUNK
        await self.released.wait()


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def serving(
    wire: str, *, options: tuple[tuple[str, int], ...] = (), age_ms: int = 0
) -> AsyncIterator[tuple[RoleServer, Waits, grpc.aio.Channel]]:
    """A server whose calls wait, and a client of it."""
    server = make_server("127.0.0.1:0", wire=wire, connection_age_ms_max=age_ms)
    waits = Waits(server)
    address = await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            yield server, waits, channel
    finally:
        await server.stop(0)


def one(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryCall[bytes, bytes]:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/One")
    return method(b"x", timeout=HANG_S)


async def is_accepted(address: str) -> bool:
    """Connect, and leave again; return whether the host accepted."""
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionError:
        return False
    writer.close()
    return True


def test_only_the_two_wires_are_settings() -> None:
    assert CommonSettings().wire == "grpc"
    with pytest.raises(SettingsError, match="EDDYLINE_COMMON_WIRE is 'http3', not one of grpc, own"):
        CommonSettings(wire="http3")


def test_both_wires_have_the_same_bounds() -> None:
    options = dict(SERVER_OPTIONS)
    assert LIMITS.message_bytes_max == options["grpc.max_receive_message_length"]
    assert LIMITS.sent_message_bytes_max == options["grpc.max_send_message_length"]
    assert LIMITS.frame_bytes_max == options["grpc.http2.max_frame_size"]
    assert LIMITS.streams_max == options["grpc.server.max_pending_requests"] == CALLS_MAX
    assert LIMITS.stream_window_bytes == dict(CHANNEL_OPTIONS)["grpc.http2.lookahead_bytes"]
    assert options["grpc.server_handshake_timeout_ms"] == HANDSHAKE_MS_MAX


def test_the_server_takes_the_pings_that_our_clients_send() -> None:
    server, client = dict(SERVER_OPTIONS), dict(CHANNEL_OPTIONS)
    assert server["grpc.keepalive_permit_without_calls"] == client["grpc.keepalive_permit_without_calls"] == 1
    assert server["grpc.http2.min_ping_interval_without_data_ms"] * 2 <= client["grpc.keepalive_time_ms"] <= 10_000
    assert server["grpc.http2.ping_timeout_ms"] == client["grpc.http2.ping_timeout_ms"] <= 10_000
    assert client["grpc.http2.max_pings_without_data"] == 0
    assert LIMITS.control_interval_s * 1000 / client["grpc.keepalive_time_ms"] < LIMITS.control_frames_max


def test_both_sides_take_messages_of_64_mib() -> None:
    for options in (dict(SERVER_OPTIONS), dict(CHANNEL_OPTIONS)):
        assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 64 << 20
    assert LIMITS.message_bytes_max == LIMITS.sent_message_bytes_max == 64 << 20


async def test_channelz_answers_on_grpcs_own_core_alone(wire: str) -> None:
    async with serving(wire) as (_, _, channel):
        call: grpc.aio.UnaryUnaryMultiCallable[channelz_pb2.GetServersRequest, channelz_pb2.GetServersResponse] = (
            channel.unary_unary(
                "/grpc.channelz.v1.Channelz/GetServers",
                channelz_pb2.GetServersRequest.SerializeToString,
                channelz_pb2.GetServersResponse.FromString,
            )
        )
        if wire == "grpc":
            assert len((await call(channelz_pb2.GetServersRequest(start_server_id=0), timeout=HANG_S)).server) >= 1
            return
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(channelz_pb2.GetServersRequest(start_server_id=0), timeout=HANG_S)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_stop_serves_calls_under_way_and_refuses_new_ones(wire: str) -> None:
    async with serving(wire) as (server, waits, channel):
        running = asyncio.ensure_future(one(channel))  # noqa: TID251
        await until(lambda: bool(waits.contexts))
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(server.stop(HANG_S))
            while await is_accepted(server.address):
                pass
            assert not stopping.done()
            waits.released.set()
        assert await running == b"x"


async def test_connections_and_calls_are_counted_on_the_own_wire(wire: str) -> None:
    async with serving(wire) as (server, waits, channel):
        calls = [one(channel) for _ in range(3)]
        await until(lambda: len(waits.contexts) == 3)
        counts = server.counts()
        if wire == "grpc":
            assert counts == ServerCounts()
        else:
            assert counts == ServerCounts(connections=1, opened_connections=1, calls=3, opened_calls=3)
        waits.released.set()
        assert [await call for call in calls] == [b"x"] * 3


async def test_connections_that_are_no_http2_or_too_many_are_counted_by_reason() -> None:
    server = make_server("127.0.0.1:0", wire="own", connections_max=1)
    address = await server.start()
    host, _, port = address.rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        await until(lambda: server.counts().connections == 1)
        refused, other = await asyncio.open_connection(host, int(port))
        assert await refused.read() == b""
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await reader.read()
        for one_writer in (writer, other):
            one_writer.close()
        await until(lambda: server.counts().connections == 0)
        counts = server.counts()
        assert (counts.refused, counts.handshakes, counts.opened_connections) == (1, 1, 2)
    finally:
        await server.stop(0)


async def test_what_a_client_has_not_read_is_visible_on_the_own_wire(wire: str) -> None:
    narrow = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536))
    async with serving(wire, options=narrow) as (server, waits, channel):
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/Flood")
        call = method(b"100", timeout=HANG_S)
        await until(lambda: bool(waits.contexts))
        (context,) = waits.contexts
        if wire == "grpc":
            assert server.backlog(context) is None
            return

        def backlog() -> Backlog:
            found = server.backlog(context)
            assert found is not None
            return found

        await until(lambda: backlog().queued_bytes >= 256 << 10)
        first = backlog()
        await until(lambda: backlog().unread_s > first.unread_s and backlog().queued_s > first.queued_s)
        assert 0 < first.unread_bytes <= 128 << 10
        async with asyncio.timeout(HANG_S):
            for _ in range(100):
                assert await call.read() == CHUNK
        await until(lambda: backlog().queued_bytes == 0)
        assert (backlog().queued_s, backlog().unread_bytes) <= (0.0, 64 << 10)
        call.cancel()


async def test_a_connection_at_its_age_takes_no_new_calls_and_finishes_its_own(wire: str) -> None:
    async with serving(wire, age_ms=1_000) as (_, waits, channel):
        running = one(channel)
        await until(lambda: bool(waits.contexts))
        peer: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Peer")
        first = await peer(b"", timeout=HANG_S)
        async with asyncio.timeout(HANG_S):
            while await peer(b"", timeout=HANG_S) == first:
                pass
        assert not running.done()
        waits.released.set()
        assert await running == b"x"
    assert CONNECTION_GRACE > 1


async def test_an_unknown_wire_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="http3"):
        make_server("127.0.0.1:0", wire="http3")


async def test_own_channel_options_work_with_both(wire: str) -> None:
    server = make_server("127.0.0.1:0", wire=wire)
    waits = Waits(server)
    waits.released.set()
    address = await server.start()
    try:
        async with open_channel(address, own_connection=True) as channel:
            assert await one(channel) == b"x"
    finally:
        await server.stop(0)
