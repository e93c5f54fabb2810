"""Bytes of frames."""

from __future__ import annotations

from eddyline.wire.http2 import frames
from eddyline.wire.http2.errors import ErrorCode
from tests.support.wire.frames import frames_of


def test_frames_have_the_layout_of_the_rfc() -> None:
    assert frames.encode_window_update(3, 1) == b"\0\0\4\x08\0\0\0\0\3\0\0\0\1"
    assert frames.encode_rst_stream(3, ErrorCode.CANCEL) == b"\0\0\4\x03\0\0\0\0\3\0\0\0\x08"
    assert frames.encode_ping(b"12345678", ack=True) == b"\0\0\x08\x06\1\0\0\0\x0012345678"
    assert frames.encode_goaway(7, ErrorCode.NO_ERROR, "why") == b"\0\0\x0b\x07\0\0\0\0\0\0\0\0\7\0\0\0\0why"
    assert frames.encode_settings({4: 1}) == b"\0\0\6\x04\0\0\0\0\0\0\4\0\0\0\1"


def test_a_large_header_block_is_split_into_continuation_frames() -> None:
    block = bytes(range(256)) * 150
    sent = frames_of(frames.encode_headers(5, block, end_stream=True, frame_bytes_max=16_384))
    assert b"".join(frame.payload for frame in sent) == block
    assert [frame.kind for frame in sent] == [frames.HEADERS, frames.CONTINUATION, frames.CONTINUATION]
    assert [frame.flags for frame in sent] == [frames.END_STREAM, 0, frames.END_HEADERS]
