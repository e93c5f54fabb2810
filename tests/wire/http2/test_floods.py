"""Attacks on HTTP/2: each is cut, after a bounded number of frames and with bounded memory."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

import pytest

from eddyline.wire.http2 import frames
from eddyline.wire.http2.errors import ErrorCode
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.hpack import STATUS_200, encode_field
from eddyline.wire.http2.limits import Limits
from tests.support.wire.frames import (
    data,
    headers,
    message,
    request,
    request_block,
    rst_stream,
    settings,
    window_update,
)
from tests.support.wire.peer import Peer

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = Limits(control_frames_max=200)
FRAMES_MAX = 10 * LIMITS.control_frames_max
"""Frames that each attack would send."""


def _rapid_reset() -> Iterator[bytes]:
    for stream_id in itertools.count(1, 2):
        yield headers(stream_id, request_block()) + data(stream_id, message(b"x")) + rst_stream(stream_id)


def _pings() -> Iterator[bytes]:
    return itertools.repeat(encode_frame(frames.PING, 0, 0, b"12345678"))


def _settings() -> Iterator[bytes]:
    return (settings({frames.INITIAL_WINDOW_SIZE: number}) for number in itertools.count())


def _empty_data() -> Iterator[bytes]:
    yield headers(1, request_block())
    yield from itertools.repeat(data(1, b""))


def _empty_continuations() -> Iterator[bytes]:
    yield encode_frame(frames.HEADERS, 0, 1, request_block())
    yield from itertools.repeat(encode_frame(frames.CONTINUATION, 0, 1))


def _full_continuations() -> Iterator[bytes]:
    yield encode_frame(frames.HEADERS, 0, 1, request_block())
    yield from itertools.repeat(encode_frame(frames.CONTINUATION, 0, 1, encode_field(b"x", b"y" * 1_000)))


def _window_updates() -> Iterator[bytes]:
    return itertools.repeat(window_update(0, 1))


def _window_updates_of_a_stream() -> Iterator[bytes]:
    yield headers(1, request_block())
    yield from itertools.repeat(window_update(1, 1))


def _priorities() -> Iterator[bytes]:
    return itertools.repeat(encode_frame(frames.PRIORITY, 0, 1, b"\0\0\0\3\0"))


def _unknown_frames() -> Iterator[bytes]:
    return itertools.repeat(encode_frame(0xEE, 0, 0))


def _data_of_closed_streams() -> Iterator[bytes]:
    yield request(1) + rst_stream(1)
    yield from itertools.repeat(data(1, b"x"))


def _malformed_requests() -> Iterator[bytes]:
    return (headers(stream_id, b"\x83") for stream_id in itertools.count(1, 2))


def _refused_streams() -> Iterator[bytes]:
    return (headers(stream_id, request_block()) for stream_id in itertools.count(1, 2))


@pytest.mark.parametrize(
    "attack",
    [
        *(_rapid_reset, _pings, _settings, _empty_data, _empty_continuations, _full_continuations, _window_updates),
        *(_window_updates_of_a_stream, _priorities, _unknown_frames, _data_of_closed_streams, _malformed_requests),
        _refused_streams,
    ],
)
def test_a_flood_is_cut(attack: object) -> None:
    assert callable(attack)
    peer = Peer(Limits(control_frames_max=LIMITS.control_frames_max, streams_max=64))
    count = 0
    output_bytes = 0
    for part in itertools.islice(attack(), FRAMES_MAX):
        count += 1
        output_bytes += sum(len(frame.payload) + 9 for frame in peer.send(part))
        if peer.failure is not None:
            break
    assert peer.failure is not None and peer.failure.code is ErrorCode.ENHANCE_YOUR_CALM
    assert count <= LIMITS.control_frames_max + 70
    assert output_bytes < 100 * LIMITS.control_frames_max
    assert not peer.connection.streams and not peer.connection.ready


def test_an_hpack_bomb_costs_a_list_at_most() -> None:
    peer = Peer()
    bomb = b"\x40" + encode_field(b"x", b"y" * 3_900)[1:] + b"\xbe" * 12_000
    peer.send(headers(1, request_block() + bomb))
    assert peer.events == [("oversized", 1)]


def test_a_huge_string_is_refused_by_its_length_alone() -> None:
    peer = Peer()
    peer.send(headers(1, request_block() + b"\x00\x01x\xff\xff\xff\xff\x7f"))
    assert peer.failure is not None and peer.failure.code is ErrorCode.COMPRESSION_ERROR


def test_windows_of_streams_that_open_together_are_paid_by_their_requests() -> None:
    """gRPC's core enlarges the window of each stream that it opens: a thousand watches may come before any answer."""
    peer = Peer(Limits(control_frames_max=200, streams_max=10_000), consumes=False)
    for index in range(3_000):
        stream_id = 1 + 2 * index
        peer.send(headers(stream_id, request_block()), window_update(stream_id, 100), window_update(0, 100))
    assert peer.failure is None
    for _ in range(FRAMES_MAX * 5):
        peer.send(window_update(1, 1))
    assert peer.failure is not None


def test_what_is_paid_stays_paid_in_the_next_interval() -> None:
    peer = Peer(Limits(control_frames_max=200, streams_max=10_000), consumes=False)
    for index in range(300):
        peer.send(headers(1 + 2 * index, request_block()))
    for index in range(199):  # with the SETTINGS that cost 10 these end the first interval
        peer.now_s += 1
        peer.send(rst_stream(1 + 2 * index))
    for _ in range(3 * 300 + 200):
        peer.send(window_update(0, 1))
    assert peer.failure is None
    peer.send(window_update(0, 1), window_update(0, 1))
    assert peer.failure is not None


def test_pings_and_windows_of_a_reader_are_paid_by_messages() -> None:
    peer = Peer(LIMITS)
    peer.send(settings({frames.INITIAL_WINDOW_SIZE: 1 << 20}), window_update(0, 1 << 20), headers(1, request_block()))
    stream = peer.stream(1)
    stream.open(STATUS_200)
    for _ in range(FRAMES_MAX):
        stream.send(b"x" * 10)
        peer.send(window_update(1, 10), window_update(0, 10), encode_frame(frames.PING, 0, 0, bytes(8)))
    assert peer.failure is None


def test_frames_at_a_bearable_rate_are_never_cut() -> None:
    peer = Peer(LIMITS)
    for _ in range(FRAMES_MAX):
        peer.send(encode_frame(frames.PING, 0, 0, bytes(8)))
        peer.now_s += LIMITS.control_interval_s / LIMITS.control_frames_max
    assert peer.failure is None


def test_answers_that_nobody_reads_are_bounded() -> None:
    peer = Peer(Limits(unsent_answers_max=100))
    peer.connection.pause()
    for _ in range(300):
        peer.connection.receive(encode_frame(frames.PING, 0, 0, bytes(8)))
    assert peer.failure is not None and peer.failure.code is ErrorCode.ENHANCE_YOUR_CALM
    assert len(peer.connection.take_output()) < 110 * 17 + 100


def test_a_stream_that_is_never_read_ends_at_its_bound() -> None:
    limits = Limits(queue_bytes_mark=1_000, queue_bytes_max=4_000)
    peer = Peer(limits)
    peer.send(settings({frames.INITIAL_WINDOW_SIZE: 0}), headers(1, request_block()), headers(3, request_block()))
    stream, other = peer.stream(1), peer.stream(3)
    stream.open(STATUS_200)
    took = [stream.send(bytes(500)) for _ in range(8)]
    assert took == [True, False, False, False, False, False, False, False]
    assert stream.queued_bytes == 4_000
    assert not stream.send(b"x")
    assert stream.is_closed and stream.queued_bytes == 0
    assert ("closed", 1, "ENHANCE_YOUR_CALM") in peer.events
    assert not other.is_closed


def test_one_message_is_taken_however_large() -> None:
    peer = Peer(Limits(queue_bytes_mark=1_000, queue_bytes_max=4_000))
    peer.send(headers(1, request_block()))
    stream = peer.stream(1)
    stream.open(STATUS_200)
    assert not stream.send(bytes(1 << 20))
    assert not stream.is_closed


def test_more_data_than_a_window_is_refused() -> None:
    limits = Limits(stream_window_bytes=65_535)
    peer = Peer(limits, consumes=False)
    peer.send(headers(1, request_block()), *(data(1, bytes(16_384)) for _ in range(4)))
    assert ("closed", 1, "FLOW_CONTROL_ERROR") in peer.events
    assert peer.failure is None


def test_more_data_than_the_connections_window_ends_the_connection() -> None:
    limits = Limits(stream_window_bytes=1 << 20, connection_window_bytes=1 << 20, unread_bytes_max=0)
    peer = Peer(limits, consumes=False)
    peer.send(headers(1, request_block()), headers(3, request_block()))
    for _ in range(33):
        peer.send(data(1, bytes(16_384)))
        peer.send(data(3, bytes(16_384)))
    assert peer.failure is not None and peer.failure.code is ErrorCode.FLOW_CONTROL_ERROR


def test_a_frame_for_each_byte_of_window_costs_what_the_peer_sends() -> None:
    peer = Peer(LIMITS)
    peer.send(settings({frames.INITIAL_WINDOW_SIZE: 0}), *(headers(at, request_block()) for at in range(1, 101, 2)))
    for at in range(1, 101, 2):
        peer.stream(at).open(STATUS_200)
        peer.stream(at).send(bytes(1_000))
    peer.sent()
    sent = peer.send(*(window_update(at % 50 * 2 + 1, 1) for at in range(150)))
    assert len(sent) == 150
    assert all(frame.payload == b"\0" for frame in sent)
    assert struct.unpack(">I", window_update(1, 1)[-4:]) == (1,)
