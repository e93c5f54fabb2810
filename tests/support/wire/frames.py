"""The client's side of HTTP/2 by hand, for tests of `eddyline.wire`: requests as bytes, and frames out of bytes."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from eddyline.wire.http2 import frames
from eddyline.wire.http2.frames import encode_frame
from eddyline.wire.http2.hpack import encode_field

HELLO: Final = frames.PREFACE + encode_frame(frames.SETTINGS, 0, 0)


class Frame(NamedTuple):
    """A frame as it was sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frames_of(data: bytes) -> list[Frame]:
    """The frames of bytes, which must be whole."""
    found: list[Frame] = []
    at = 0
    while at < len(data):
        length_and_kind, flags, stream_id = struct.unpack_from(">IBI", data, at)
        end = at + 9 + (length_and_kind >> 8)
        assert end <= len(data), "a frame is cut"
        found.append(Frame(length_and_kind & 0xFF, flags, stream_id, data[at + 9 : end]))
        at = end
    return found


def request_block(path: bytes = b"/t.T/Echo", *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC request."""
    fields = ((b":path", path), (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more)
    return b"\x83\x86" + b"".join(encode_field(name, value) for name, value in fields)


def message(data: bytes) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", 0, len(data)) + data


def headers(stream_id: int, block: bytes, *, is_end: bool = False) -> bytes:
    """A HEADERS frame with a whole block."""
    return encode_frame(frames.HEADERS, frames.END_HEADERS | (frames.END_STREAM if is_end else 0), stream_id, block)


def data(stream_id: int, payload: bytes, *, is_end: bool = False) -> bytes:
    """A DATA frame."""
    return encode_frame(frames.DATA, frames.END_STREAM if is_end else 0, stream_id, payload)


def request(stream_id: int, body: bytes = b"x", path: bytes = b"/t.T/Echo") -> bytes:
    """A whole request with one message."""
    return headers(stream_id, request_block(path)) + data(stream_id, message(body), is_end=True)


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frames.encode_settings(values)


def window_update(stream_id: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; increment 0 is an error of the peer."""
    return encode_frame(frames.WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def rst_stream(stream_id: int, code: int = 8) -> bytes:
    """A RST_STREAM frame."""
    return encode_frame(frames.RST_STREAM, 0, stream_id, struct.pack(">I", code))


def goaway_of(sent: list[Frame]) -> tuple[int, int] | None:
    """Last stream and code of the last GOAWAY; None = there is none."""
    payloads = [frame.payload for frame in sent if frame.kind == frames.GOAWAY]
    return struct.unpack_from(">II", payloads[-1]) if payloads else None
