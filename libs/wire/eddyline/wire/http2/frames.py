"""Frames of HTTP/2 (RFC 9113, 4 and 6): constants, and the bytes of each frame that a server sends.

A frame is 3 bytes of length, 1 of type, 1 of flags, 4 of stream id, and its payload. Length and type are packed as one
number of 32 bits: `length << 8 | type`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.wire.http2.errors import ErrorCode

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client (3.4)."""

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
ENABLE_PUSH: Final = 0x2
MAX_CONCURRENT_STREAMS: Final = 0x3
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5
MAX_HEADER_LIST_SIZE: Final = 0x6

HEADER_BYTES: Final = 9
INITIAL_WINDOW: Final = 65_535
"""Of the connection and of each stream until somebody says otherwise (6.9.2)."""
WINDOW_MAX: Final = 0x7FFF_FFFF
STREAM_ID_MAX: Final = 0x7FFF_FFFF
FRAME_BYTES_MIN: Final = 1 << 14
FRAME_BYTES_LIMIT: Final = (1 << 24) - 1
"""Bounds of MAX_FRAME_SIZE (6.5.2)."""
PING_BYTES: Final = 8

pack_header: Final = struct.Struct(">IBI").pack
"""Pack `length << 8 | type`, flags and stream id."""
unpack_u32: Final = struct.Struct(">I").unpack_from
SETTING: Final = struct.Struct(">HI")


def encode_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame of any type."""
    return pack_header(len(payload) << 8 | kind, flags, stream_id) + payload


def encode_settings(values: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame (6.5)."""
    return encode_frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


SETTINGS_ACK: Final = encode_frame(SETTINGS, ACK, 0)


def encode_ping(payload: bytes, *, ack: bool = False) -> bytes:
    """Return a PING frame (6.7); `payload` has 8 bytes."""
    assert len(payload) == PING_BYTES
    return encode_frame(PING, ACK if ack else 0, 0, payload)


def encode_goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    """Return a GOAWAY frame (6.8) with `reason` as its debug data."""
    return encode_frame(GOAWAY, 0, 0, struct.pack(">II", last_stream_id, code) + reason.encode())


def encode_window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame (6.9); stream 0 = the connection."""
    assert 0 < increment <= WINDOW_MAX
    return encode_frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def encode_rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame (6.4)."""
    return encode_frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def encode_headers(stream_id: int, block: bytes, *, end_stream: bool = False, frame_bytes_max: int) -> bytes:
    """Return a HEADERS frame, with CONTINUATION frames where `block` exceeds `frame_bytes_max` (6.2, 6.10)."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= frame_bytes_max:
        return pack_header(len(block) << 8 | HEADERS, flags | END_HEADERS, stream_id) + block
    pieces = [block[at : at + frame_bytes_max] for at in range(0, len(block), frame_bytes_max)]
    frames = [encode_frame(HEADERS, flags, stream_id, pieces[0])]
    frames += (encode_frame(CONTINUATION, 0, stream_id, piece) for piece in pieces[1:-1])
    frames.append(encode_frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1]))
    return b"".join(frames)
