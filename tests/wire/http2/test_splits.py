"""C1: any split of the input gives the same events and output, for frames that are right, wrong or mutated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.wire.http2 import frames
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.hpack import encode_field
from tests.support.wire.frames import (
    HELLO,
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

IDS = st.integers(0, 9)
INDEXED = b"\x40" + encode_field(b"x-a", b"value")[1:]
FRAMES = st.one_of(
    IDS.map(request),
    IDS.map(lambda stream_id: headers(stream_id, request_block() + INDEXED)),
    IDS.map(lambda stream_id: headers(stream_id, request_block() + b"\xbe", is_end=True)),
    st.builds(lambda at, body: data(at, message(body)), IDS, st.binary(max_size=40)),
    IDS.map(lambda stream_id: data(stream_id, b"", is_end=True)),
    IDS.map(lambda at: encode_frame(frames.DATA, frames.PADDED, at, b"\x02ab\0\0")),
    IDS.map(
        lambda at: (
            encode_frame(frames.HEADERS, 0, at, request_block())
            + encode_frame(frames.CONTINUATION, frames.END_HEADERS, at, INDEXED)
        )
    ),
    IDS.map(rst_stream),
    st.builds(window_update, IDS, st.integers(0, 1_000)),
    st.sampled_from(
        [
            settings({frames.INITIAL_WINDOW_SIZE: 100}),
            settings({frames.INITIAL_WINDOW_SIZE: 70_000, frames.MAX_FRAME_SIZE: 20_000}),
            encode_frame(frames.PING, 0, 0, b"12345678"),
            encode_frame(frames.PRIORITY, 0, 3, b"\0\0\0\0\0"),
            encode_frame(0x77, 0, 0, b"unknown"),
        ]
    ),
)


def outcome(parts: list[bytes]) -> tuple[list[object], bytes]:
    """Events and output of a connection whose streams answer at the end of their request."""
    peer = Peer(greets=False)
    peer.connection.begin()
    for part in parts:
        peer.connection.receive(part)
    return list(peer.events), peer.connection.take_output()


def cut(sent: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(sent) + 1) for place in places})
    return [sent[begin:end] for begin, end in zip([0, *at], [*at, len(sent)], strict=True)]


@given(st.lists(FRAMES, max_size=15), st.lists(st.integers(0, 10_000), max_size=20))
def test_any_split_gives_the_same_events_and_output(parts: list[bytes], places: list[int]) -> None:
    sent = HELLO + b"".join(parts)
    assert outcome(cut(sent, places)) == outcome([sent])


@given(
    st.lists(FRAMES, min_size=1, max_size=15),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=5),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_mutated_frames_raise_nothing_and_split_alike(
    parts: list[bytes], mutations: list[tuple[int, int]], places: list[int]
) -> None:
    mutated = bytearray(HELLO + b"".join(parts))
    for place, value in mutations:
        mutated[place % len(mutated)] = value
    sent = bytes(mutated)
    assert outcome(cut(sent, places)) == outcome([sent])
