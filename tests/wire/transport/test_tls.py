"""TLS with a real client: HTTP/2 alone, clients' certificates, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import ssl
from itertools import pairwise
from typing import TYPE_CHECKING

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.wire.calls.server import Server
from eddyline.wire.http2 import frames
from eddyline.wire.transport.timeouts import Timeouts
from eddyline.wire.transport.tls import TlsFailed, TlsSession
from tests.support.certificates import Authority
from tests.support.hang import HANG_S
from tests.support.wire.client import stream_stream, unary_unary, until
from tests.support.wire.echo_server import echo_server
from tests.support.wire.fake_socket import FakeSocket
from tests.support.wire.frames import HELLO, frames_of, request
from tests.support.wire.tls import TlsClient, client_credentials, server_context

if TYPE_CHECKING:
    from pathlib import Path

OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_calls_go_over_tls(authority: Authority) -> None:
    context = server_context(authority.sign("server"))
    async with (
        echo_server(context=lambda: context) as echo,
        grpc.aio.secure_channel(echo.address, client_credentials(authority)) as channel,
    ):
        body = bytes(range(256)) * 8_000
        assert await unary_unary(channel, "/t.T/Echo")(body) == body
        assert [one async for one in stream_stream(channel, "/t.T/Bidi")(iter([body] * 3))] == [body] * 3
        assert await unary_unary(channel, "/t.T/Names")(b"") == b""


async def test_a_clients_certificate_is_verified_and_its_names_are_known(authority: Authority) -> None:
    context = server_context(authority.sign("server"), clients=authority)
    credentials = client_credentials(authority, authority.sign("a client"))
    async with (
        echo_server(context=lambda: context) as echo,
        grpc.aio.secure_channel(echo.address, credentials) as channel,
        grpc.aio.secure_channel(echo.address, client_credentials(authority)) as without,
    ):
        assert await unary_unary(channel, "/t.T/Names")(b"") == b"a client"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await unary_unary(without, "/t.T/Names")(b"")
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_names_have_grpcs_properties(authority: Authority) -> None:
    seen: list[dict[str, list[bytes]]] = []

    async def note(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        seen.append({name: list(values) for name, values in context.auth_context().items()})
        return b",".join(context.peer_identities() or ())

    own = authority.sign_names("client", common_name="me", uris=("urn:me",), dns=("me.example",))
    context = server_context(authority.sign("server"), clients=authority)
    server = Server()
    server.add_registered_method_handlers("n.N", {"Note": grpc.unary_unary_rpc_method_handler(note)})
    async with (
        echo_server(server, context=lambda: context) as echo,
        grpc.aio.secure_channel(echo.address, client_credentials(authority, own)) as channel,
    ):
        assert set((await unary_unary(channel, "/n.N/Note")(b"")).split(b",")) == {b"urn:me", b"me.example"}
    (properties,) = seen
    assert properties["x509_common_name"] == [b"me"]
    assert (properties["peer_uri"], properties["peer_dns"]) == ([b"urn:me"], [b"me.example"])
    assert properties["x509_pem_cert"][0].startswith(b"-----BEGIN CERTIFICATE-----")
    assert properties["transport_security_type"] == [b"ssl"]


async def test_a_renewed_certificate_is_used_by_new_connections(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    contexts = [server_context(authority.sign("first"))]
    async with (
        echo_server(context=lambda: contexts[-1]) as echo,
        grpc.aio.secure_channel(echo.address, client_credentials(authority)) as before,
    ):
        assert await unary_unary(before, "/t.T/Echo")(b"x") == b"x"
        contexts.append(server_context(other.sign("second")))
        async with grpc.aio.secure_channel(echo.address, client_credentials(other), options=OWN_CONNECTION) as after:
            assert await unary_unary(after, "/t.T/Echo")(b"y") == b"y"
        assert await unary_unary(before, "/t.T/Echo")(b"z") == b"z"


@pytest.mark.parametrize("protocols", [["http/1.1"], []])
async def test_a_client_that_asks_for_no_http2_is_refused(authority: Authority, protocols: list[str]) -> None:
    client = ssl.create_default_context(cafile=authority.own.certificate)
    if protocols:
        client.set_alpn_protocols(protocols)
    context = server_context(authority.sign("server"))
    async with echo_server(context=lambda: context) as echo, asyncio.timeout(HANG_S):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", echo.port, ssl=client, server_hostname="localhost"
            )
            try:
                assert await reader.read() == b""
                raise ConnectionResetError
            finally:
                writer.close()
        assert echo.server.counters.handshakes_failed == 1
        await until(lambda: echo.server.counters.connections == 0)


async def test_a_handshake_that_stops_is_cut_in_time(authority: Authority) -> None:
    context = server_context(authority.sign("server"))
    server = Server(timeouts=Timeouts(handshake_s=0.05, sweep_s=0.02))
    async with echo_server(server, context=lambda: context) as echo, asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        writer.write(b"\x16\x03\x01")
        with pytest.raises(ConnectionResetError):
            assert await reader.read() == b""
            raise ConnectionResetError
        writer.close()
        await until(lambda: echo.server.counters.connections == 0)
        assert echo.server.counters.half_open == 0


def test_bytes_that_are_not_tls_fail() -> None:
    session = TlsSession(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    assert session.receive(b"GET / HTTP/1.1\r\n\r\n") == b""
    assert session.failure
    with pytest.raises(TlsFailed):
        session.encrypt(b"x")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("end", ["close_notify", "garbage", "open"])
@given(writes=st.lists(st.integers(1, 40_000), max_size=4), cuts=st.lists(st.integers(0, 160_000), max_size=6))
def test_any_split_of_the_records_gives_the_same_bytes_and_the_same_end(
    authority: Authority, version: ssl.TLSVersion, end: str, writes: list[int], cuts: list[int]
) -> None:
    session = TlsSession(server_context(authority.sign("server")))
    client = TlsClient(authority, version)
    client.shake_hands(session)
    records = b"".join(client.sends(b"%d" % number * size) for number, size in enumerate(writes))
    if end == "close_notify":
        records += client.closes()
    elif end == "garbage":
        records += b"\x17\x03\x03\x00\x20" + bytes(32)
    edges = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    received = b"".join(session.receive(records[begin:stop]) for begin, stop in pairwise(edges))
    assert received == b"".join(b"%d" % number * size for number, size in enumerate(writes))
    assert (session.is_closed, bool(session.failure)) == (end == "close_notify", end == "garbage")
    assert session.is_open


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_request_that_came_with_the_end_of_a_session_is_served_and_answered(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    socket = FakeSocket(context=server_context(authority.sign("server")))
    client = TlsClient(authority, version)
    while client.handshake():
        socket.connection.data_received(client.output())
        client.take(b"".join(socket.transport.writes))
        socket.transport.writes.clear()
    socket.connection.data_received(client.sends(HELLO + request(1)) + client.closes())
    plain, is_closed = client.take(b"".join(socket.transport.writes))
    assert [frame.stream_id for frame in frames_of(plain) if frame.kind == frames.HEADERS] == [1, 1]
    assert is_closed and socket.transport.is_closed and not socket.transport.is_aborted


async def test_a_client_that_is_refused_reads_why(authority: Authority, tmp_path: Path) -> None:
    """TLS 1.3: the client has finished when the server refuses its certificate, so all that it reads is the alert."""
    context = server_context(authority.sign("server"), clients=authority)
    stranger = Authority(tmp_path / "stranger").sign("stranger")
    async with echo_server(context=lambda: context) as echo, asyncio.timeout(HANG_S):
        for own, words in ((None, "certificate required"), (stranger, "unknown ca")):
            client = ssl.create_default_context(cafile=authority.own.certificate)
            client.set_alpn_protocols(["h2"])
            if own is not None:
                client.load_cert_chain(own.certificate, own.key)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", echo.port, ssl=client, server_hostname="localhost"
            )
            with pytest.raises(ssl.SSLError, match=words):
                await reader.read()
            writer.close()
        assert echo.server.counters.handshakes_failed == 2
