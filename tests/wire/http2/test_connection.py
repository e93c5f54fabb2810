"""States of streams, errors of the protocol, and the end of a connection (RFC 9113)."""

from __future__ import annotations

import pytest

from eddyline.wire.http2 import frames
from eddyline.wire.http2.connection import DRAIN_PING
from eddyline.wire.http2.errors import ErrorCode
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.hpack import STATUS_200, encode_field
from eddyline.wire.http2.limits import Limits
from tests.support.wire.frames import (
    HELLO,
    Frame,
    data,
    goaway_of,
    headers,
    message,
    request,
    request_block,
    rst_stream,
    settings,
    window_update,
)
from tests.support.wire.peer import Peer

END = encode_field(b"grpc-status", b"0")


def kinds(sent: list[Frame]) -> list[int]:
    return [frame.kind for frame in sent]


def test_the_server_begins_with_its_settings_and_window() -> None:
    peer = Peer(Limits(streams_max=7), greets=False)
    peer.connection.begin()
    first, second = peer.sent()
    assert (first.kind, second.kind) == (frames.SETTINGS, frames.WINDOW_UPDATE)
    assert dict(frames.SETTING.iter_unpack(first.payload))[frames.MAX_CONCURRENT_STREAMS] == 7
    assert int.from_bytes(second.payload, "big") == Limits().connection_window_bytes - frames.INITIAL_WINDOW


def test_a_request_gives_its_events_and_its_answer_is_sent() -> None:
    peer = Peer()
    peer.send(request(1, b"hi"))
    assert [event[0] for event in peer.events] == ["request", "data", "end"]
    stream = peer.stream(1)
    stream.open(STATUS_200)
    assert stream.send(b"answer")
    stream.end(END)
    sent = peer.sent()
    assert kinds(sent) == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert sent[1].payload == b"answer"
    assert sent[2].flags == frames.END_HEADERS | frames.END_STREAM
    assert peer.events[-1] == ("closed", 1, None)
    assert not peer.connection.streams


def test_an_answer_before_the_request_has_ended_resets_the_rest() -> None:
    peer = Peer()
    peer.send(headers(1, request_block()))
    peer.stream(1).end(END)
    sent = peer.sent()
    assert kinds(sent) == [frames.HEADERS, frames.RST_STREAM]
    assert sent[1].payload == bytes(4)
    assert peer.send(data(1, b"late"), data(1, b"", is_end=True)) == []


def test_output_outside_of_a_read_wakes_the_owner_once() -> None:
    peer = Peer()
    peer.wakes = 0
    peer.send(request(1))
    assert peer.wakes == 0
    stream = peer.stream(1)
    stream.open(STATUS_200)
    stream.send(b"a")
    stream.send(b"b")
    assert peer.wakes == 1


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (data(1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (data(0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (window_update(1, 1), ErrorCode.PROTOCOL_ERROR),
        (window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
        (window_update(0, frames.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (rst_stream(1), ErrorCode.PROTOCOL_ERROR),
        (headers(2, request_block()), ErrorCode.PROTOCOL_ERROR),
        (headers(0, request_block()), ErrorCode.PROTOCOL_ERROR),
        (headers(1, b"\x80"), ErrorCode.COMPRESSION_ERROR),
        (settings({frames.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (settings({frames.MAX_FRAME_SIZE: 1}), ErrorCode.PROTOCOL_ERROR),
        (settings({frames.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.SETTINGS, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(frames.PING, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.WINDOW_UPDATE, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (encode_frame(frames.PUSH_PROMISE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.HEADERS, 0, 1, b"") + request(3), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.HEADERS, frames.PADDED | 4, 1, b"\x05ab"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.HEADERS, frames.HAS_PRIORITY | 4, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.PRIORITY, 0, 1, b"\0\0\0\1\0"), ErrorCode.PROTOCOL_ERROR),
        (encode_frame(frames.DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
        (request(1) + rst_stream(1) + headers(1, request_block()), ErrorCode.STREAM_CLOSED),
        (encode_frame(frames.GOAWAY, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_an_error_of_the_connection_ends_it_with_the_codes_of_the_rfc(sent: bytes, code: ErrorCode) -> None:
    peer = Peer()
    assert (goaway_of(peer.send(sent)) or (0, 0))[1] == code
    assert peer.failure is not None and peer.failure.code is code
    assert peer.send(request(5)) == []


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (headers(1, request_block(b"/a/B", (b"Bad", b""))), ErrorCode.PROTOCOL_ERROR),
        (headers(1, request_block()) + window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
        (headers(1, request_block()) + window_update(1, frames.WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (headers(1, request_block()) + headers(1, END), ErrorCode.PROTOCOL_ERROR),
        (headers(1, request_block()) + headers(1, b"\x83", is_end=True), ErrorCode.PROTOCOL_ERROR),
        (request(1) + data(1, b"x"), ErrorCode.STREAM_CLOSED),
        (request(1) + headers(1, END, is_end=True), ErrorCode.STREAM_CLOSED),
        (headers(1, request_block(b"/a/B", (b"content-length", b"1"))) + data(1, b"xx"), ErrorCode.PROTOCOL_ERROR),
        (headers(1, request_block(b"/a/B", (b"content-length", b"1")), is_end=True), ErrorCode.PROTOCOL_ERROR),
        (headers(1, request_block()) + encode_frame(frames.PRIORITY, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_an_error_of_a_stream_ends_only_that_stream(sent: bytes, code: ErrorCode) -> None:
    peer = Peer()
    resets = [frame for frame in peer.send(sent) if frame.kind == frames.RST_STREAM]
    assert [(frame.stream_id, int.from_bytes(frame.payload, "big")) for frame in resets] == [(1, code)]
    peer.send(request(3))
    assert peer.events[-1] == ("end", 3)


def test_what_is_not_http2_is_refused_at_its_first_wrong_byte() -> None:
    peer = Peer(greets=False)
    assert (goaway_of(peer.send(b"PRX")) or (0, 0))[1] == ErrorCode.PROTOCOL_ERROR


def test_the_first_frame_is_settings() -> None:
    peer = Peer(greets=False)
    assert (goaway_of(peer.send(frames.PREFACE + encode_frame(frames.PING, 0, 0, bytes(8)))) or (0, 0))[1] == 1


def test_trailers_of_a_client_end_its_request() -> None:
    peer = Peer()
    peer.send(headers(1, request_block()), data(1, b"x"), headers(1, encode_field(b"a", b"b"), is_end=True))
    assert peer.events[-1] == ("end", 1)


def test_padding_is_not_data_but_is_credited() -> None:
    peer = Peer(consumes=False)
    peer.send(headers(1, request_block()), encode_frame(frames.DATA, frames.PADDED, 1, b"\x03ab\0\0\0"))
    assert peer.events[-1] == ("data", 1, b"ab")
    assert peer.stream(1).unread == peer.connection.unread == 2


def test_streams_above_their_bound_are_refused_and_their_blocks_decoded() -> None:
    peer = Peer(Limits(streams_max=2))
    indexed = b"\x40" + encode_field(b"x", b"y")[1:]
    sent = peer.send(*(headers(at, request_block() + indexed) for at in (1, 3, 5)))
    assert [(frame.kind, frame.stream_id, frame.payload[-1]) for frame in sent] == [(frames.RST_STREAM, 5, 7)]
    peer.stream(1).reset(ErrorCode.CANCEL)
    peer.send(headers(7, request_block() + b"\xc0"))
    fields = peer.stream(7).request.fields
    assert fields[-1] == (b"x", b"y")


def test_an_oversized_list_ends_its_stream_alone() -> None:
    peer = Peer(Limits(header_list_bytes_max=1_000))
    peer.send(headers(1, request_block(b"/a/B", (b"x", b"y" * 2_000)), is_end=True))
    assert peer.events[0] == ("oversized", 1)
    peer.send(request(3))
    assert peer.events[-1] == ("end", 3)


def test_a_reset_of_the_client_closes_the_stream_with_its_code() -> None:
    peer = Peer()
    peer.send(headers(1, request_block()), rst_stream(1, 8), headers(3, request_block()), rst_stream(3, 999))
    assert ("closed", 1, "CANCEL") in peer.events
    assert ("closed", 3, "INTERNAL_ERROR") in peer.events
    assert not peer.stream(1).send(b"x")


def test_unknown_frames_and_settings_are_ignored() -> None:
    peer = Peer()
    sent = peer.send(encode_frame(0xEE, 0xFF, 9, b"x"), settings({0xEEEE: 1}))
    assert kinds(sent) == [frames.SETTINGS]


def test_a_drain_refuses_nothing_until_the_client_has_seen_it() -> None:
    peer = Peer()
    peer.send(headers(1, request_block()))
    peer.connection.drain()
    goaway, ping = peer.sent()
    assert goaway_of([goaway]) == (frames.STREAM_ID_MAX, 0)
    peer.send(request(3))
    assert peer.events[-1] == ("end", 3)
    final = peer.send(encode_frame(frames.PING, frames.ACK, 0, DRAIN_PING))
    assert goaway_of(final) == (3, 0)
    assert peer.send(request(5)) == []
    assert ping.payload == DRAIN_PING
    peer.stream(3).end(END)
    assert not [event for event in peer.events if event[0] == "drained"]
    peer.stream(1).end(END)
    assert peer.events.pop() == ("drained",)


def test_a_drain_without_streams_ends_after_one_round_trip() -> None:
    peer = Peer()
    peer.connection.drain()
    peer.send(encode_frame(frames.PING, frames.ACK, 0, DRAIN_PING))
    assert peer.events == [("drained",)]


def test_a_lost_connection_closes_its_streams() -> None:
    peer = Peer()
    peer.send(headers(1, request_block()), headers(3, request_block()))
    peer.connection.lost()
    assert peer.events[-2:] == [("closed", 1, "CANCEL"), ("closed", 3, "CANCEL")]
    assert not peer.connection.streams


def test_a_whole_response_is_sent_at_once_or_not_at_all() -> None:
    peer = Peer()
    peer.send(settings({frames.INITIAL_WINDOW_SIZE: 10}), request(1), request(3))
    assert not peer.stream(1).respond(b"frames", 11)
    assert peer.stream(3).respond(data(3, b"1234567890", is_end=True), 10)
    assert ("closed", 3, None) in peer.events
    assert [frame.stream_id for frame in peer.sent() if frame.kind == frames.DATA] == [3]


def test_header_blocks_above_their_bound_end_the_connection() -> None:
    peer = Peer(Limits(header_block_bytes_max=20_000))
    sent = peer.send(
        encode_frame(frames.HEADERS, 0, 1, bytes(10_000)), encode_frame(frames.CONTINUATION, 0, 1, bytes(10_001))
    )
    assert (goaway_of(sent) or (0, 0))[1] == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_without_its_end_is_known_by_its_time() -> None:
    peer = Peer()
    assert peer.connection.header_block_since_s is None
    peer.now_s = 3.0
    peer.send(encode_frame(frames.HEADERS, 0, 1, request_block()))
    assert peer.connection.header_block_since_s == 3.0
    peer.send(encode_frame(frames.CONTINUATION, frames.END_HEADERS, 1))
    assert peer.connection.header_block_since_s is None


def test_contradicting_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="assembling_bytes_max"):
        Limits(message_bytes_max=2, assembling_bytes_max=1)
    with pytest.raises(ValueError, match="stream_window_bytes"):
        Limits(stream_window_bytes=1_000)


def test_requests_split_in_any_way_are_one_request() -> None:
    peer = Peer(greets=False)
    peer.connection.begin()
    for byte in HELLO + request(1, b"abc"):
        peer.connection.receive(bytes((byte,)))
    assert peer.events[1:] == [("data", 1, message(b"abc")), ("end", 1)]
