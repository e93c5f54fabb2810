"""A connection's writes, its times, and its end, on a transport and a clock that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.wire.http2 import frames
from eddyline.wire.http2.connection import DRAIN_PING, KEEPALIVE_PING
from eddyline.wire.http2.errors import ErrorCode
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.hpack import STATUS_200, encode_field
from eddyline.wire.transport.connection import format_peer
from eddyline.wire.transport.timeouts import Timeouts
from tests.support.wire.fake_socket import FakeOwner, FakeSocket, HoldingService
from tests.support.wire.frames import HELLO, goaway_of, headers, request, request_block, settings

if TYPE_CHECKING:
    import pytest

    from eddyline.wire.http2.stream import Http2Stream
    from eddyline.wire.transport.connection import SocketConnection

END = encode_field(b"grpc-status", b"0")


def greeted(socket: FakeSocket) -> FakeSocket:
    socket.send(HELLO)
    return socket


def test_an_answer_inside_a_read_is_one_write() -> None:
    socket = greeted(FakeSocket())
    socket.connection.data_received(request(1) + request(3))
    assert len(socket.transport.writes) == 1
    assert [frame.kind for frame in socket.written()] == [frames.HEADERS, frames.DATA, frames.HEADERS] * 2


def test_all_that_a_turn_sends_is_one_write() -> None:
    service = HoldingService()
    socket = greeted(FakeSocket(FakeOwner(service)))
    socket.send(headers(1, request_block()), headers(3, request_block()))
    for stream in service.streams:
        stream.open(STATUS_200)
        stream.send(b"a")
        stream.send(b"b")
    assert socket.transport.writes == []
    socket.loop.turn()
    assert len(socket.transport.writes) == 1
    assert len(socket.written()) == 6


def test_a_full_socket_holds_streams_back_until_it_is_writable() -> None:
    service = HoldingService()
    socket = greeted(FakeSocket(FakeOwner(service)))
    socket.send(headers(1, request_block()))
    stream = service.streams[0]
    stream.open(STATUS_200)
    socket.written()
    socket.connection.pause_writing()
    stream.send(b"waits")
    assert socket.written() == []
    (backlog,) = socket.connection.backlogs(socket.loop.now_s + 3)
    assert (backlog.queued_bytes, backlog.queued_age_s, backlog.path) == (5, 3.0, "/t.T/Echo")
    socket.connection.resume_writing()
    assert [frame.payload for frame in socket.written()] == [b"waits"]


def test_a_backlog_shows_what_the_clients_window_has_not_taken() -> None:
    service = HoldingService()
    socket = greeted(FakeSocket(FakeOwner(service)))
    socket.send(settings({frames.INITIAL_WINDOW_SIZE: 100}), headers(1, request_block()))
    service.streams[0].open(STATUS_200)
    service.streams[0].send(bytes(130))
    socket.loop.now_s += 7
    (backlog,) = socket.connection.backlogs(socket.loop.now_s)
    assert (backlog.queued_bytes, backlog.queued_age_s, backlog.uncredited_bytes) == (30, 7.0, 100)
    assert backlog.uncredited_age_s == 7.0
    assert backlog.peer == "ipv4:127.0.0.1:5000"


def test_a_client_without_a_preface_is_cut_in_time() -> None:
    owner = FakeOwner(timeouts=Timeouts(handshake_s=5))
    socket = FakeSocket(owner)
    socket.send(HELLO[:10])
    socket.pass_time(4.9)
    assert not socket.transport.is_aborted
    socket.pass_time(0.2)
    assert socket.transport.is_aborted
    assert (owner.counters.handshakes_failed, owner.prefaces) == (1, 0)


def test_a_header_block_without_its_end_is_cut_in_time() -> None:
    socket = greeted(FakeSocket(FakeOwner(timeouts=Timeouts(header_block_s=5, keepalive_s=0))))
    socket.send(encode_frame(frames.HEADERS, 0, 1, request_block()))
    assert socket.pass_time(4.9) == []
    assert (goaway_of(socket.pass_time(0.2)) or (0, 0))[1] == ErrorCode.ENHANCE_YOUR_CALM
    assert socket.transport.is_closed


def test_a_silent_client_is_asked_and_then_ended() -> None:
    owner = FakeOwner(timeouts=Timeouts(keepalive_s=10, keepalive_timeout_s=3))
    socket = greeted(FakeSocket(owner))
    assert socket.pass_time(9.9) == []
    (ping,) = socket.pass_time(0.2)
    assert ping.payload == KEEPALIVE_PING
    socket.send(encode_frame(frames.PING, frames.ACK, 0, KEEPALIVE_PING))
    assert [frame.kind for frame in socket.pass_time(10)] == [frames.PING]
    socket.pass_time(2.9)
    assert not socket.transport.is_aborted
    socket.pass_time(0.2)
    assert socket.transport.is_aborted
    assert owner.counters.keepalive_timeouts == 1


def test_a_connection_of_its_age_drains_and_ends_after_its_grace() -> None:
    service = HoldingService()
    timeouts = Timeouts(keepalive_s=0, age_s=60, age_grace_s=30, drain_ping_s=5)
    socket = greeted(FakeSocket(FakeOwner(service, timeouts), age_s=66))
    socket.send(headers(1, request_block()))
    assert socket.pass_time(65) == []
    assert goaway_of(socket.pass_time(1)) == (frames.STREAM_ID_MAX, 0)
    assert goaway_of(socket.pass_time(5)) == (1, 0)
    socket.pass_time(24)
    assert not socket.transport.is_closed
    socket.pass_time(1.5)
    assert socket.transport.is_closed


def test_a_drained_connection_closes_after_its_last_call() -> None:
    service = HoldingService()
    socket = greeted(FakeSocket(FakeOwner(service)))
    socket.send(headers(1, request_block()))
    socket.connection.drain()
    socket.send(encode_frame(frames.PING, frames.ACK, 0, DRAIN_PING))
    assert not socket.transport.is_closed
    service.streams[0].end(END)
    assert socket.transport.is_closed
    assert [frame.kind for frame in socket.written()][-2:] == [frames.HEADERS, frames.RST_STREAM]


def test_a_connection_without_a_preface_closes_at_once_when_it_drains() -> None:
    socket = FakeSocket()
    socket.connection.drain()
    assert socket.transport.is_closed


def test_a_closed_connection_that_lingers_is_aborted() -> None:
    socket = greeted(FakeSocket(FakeOwner(timeouts=Timeouts(linger_s=2))))
    socket.connection.close()
    socket.pass_time(1.9)
    assert not socket.transport.is_aborted
    socket.pass_time(0.2)
    assert socket.transport.is_aborted


def test_a_refused_connection_is_aborted_and_never_released() -> None:
    owner = FakeOwner()
    owner.admits = False
    socket = FakeSocket(owner)
    socket.connection.data_received(HELLO)
    socket.connection.connection_lost(None)
    assert socket.transport.is_aborted
    assert owner.released == 0


def test_an_error_of_the_service_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(HoldingService):
        def on_request(self, stream: Http2Stream, connection: SocketConnection) -> None:
            raise KeyError("mine")

    owner = FakeOwner(Failing())
    socket = greeted(FakeSocket(owner))
    assert (goaway_of(socket.send(request(1))) or (0, 0))[1] == ErrorCode.INTERNAL_ERROR
    assert socket.transport.is_closed
    assert "unexpected error" in caplog.text
    assert owner.counters.connections_failed == {"INTERNAL_ERROR": 1}


def test_bytes_and_streams_are_counted() -> None:
    owner = FakeOwner()
    socket = FakeSocket(owner)
    sent = HELLO + request(1)
    socket.connection.data_received(sent)
    assert (owner.counters.received_bytes, owner.counters.streams_total) == (len(sent), 1)
    assert owner.counters.sent_bytes == sum(len(one) for one in socket.transport.writes)


def test_peers_are_written_as_grpc_writes_them() -> None:
    assert format_peer(("127.0.0.1", 80)) == "ipv4:127.0.0.1:80"
    assert format_peer(("::1", 80, 0, 0)) == "ipv6:%5B::1%5D:80"
    assert format_peer("/run/x") == "unix:/run/x"
    assert format_peer(None) == "unknown:"
