"""Bytes of a client as frames (RFC 9113, 4 and 6): cut, checked for their form, and given to a receiver.

Owns what is incomplete: the rest of a frame, and a header block of which CONTINUATION frames are due. Both are bounded, by
`frame_bytes_max` and `header_block_bytes_max`. Knows no state of streams: whether a frame fits a stream is for the receiver.
Failure: `ConnectionFailed`; nothing must be read after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode
from eddyline.wire.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADER_BYTES,
    HEADERS,
    PADDED,
    PING,
    PING_BYTES,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_ID_MAX,
    WINDOW_MAX,
    WINDOW_UPDATE,
    unpack_u32,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from eddyline.wire.http2.limits import Limits

PRIORITY_BYTES: Final = 5
GOAWAY_BYTES_MIN: Final = 8


class FrameReceiver(Protocol):
    """Gets well-formed frames in their order. A method may raise `ConnectionFailed`."""

    def on_data(self, stream_id: int, data: bytes, payload_bytes: int, *, is_end: bool) -> None:
        """Take DATA without its padding; `payload_bytes` is what counts for the windows."""

    def on_headers(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        """Take a whole header block of an odd stream id."""

    def on_window_update(self, stream_id: int, increment: int) -> None:
        """Take a WINDOW_UPDATE; stream 0 = the connection, increment 0 = an error of the peer."""

    def on_ping(self, payload: bytes, *, is_ack: bool) -> None:
        """Take a PING."""

    def on_settings(self, settings: list[tuple[int, int]] | None) -> None:
        """Take SETTINGS, or None for the acknowledgement of ours."""

    def on_rst_stream(self, stream_id: int, code: int) -> None:
        """Take a RST_STREAM."""

    def on_priority(self, stream_id: int, *, is_sized: bool) -> None:
        """Take a PRIORITY frame; not `is_sized` = an error of the stream."""

    def on_idle_frame(self) -> None:
        """Take a frame that changes nothing: a CONTINUATION, a GOAWAY of the client, an unknown type."""


class _HeaderFrames:
    """A header block of which CONTINUATION frames are due (6.10)."""

    __slots__ = ("is_end", "pieces", "size", "started_s", "stream_id")

    def __init__(self, stream_id: int, piece: bytes, started_s: float, *, is_end: bool) -> None:
        self.stream_id = stream_id
        self.is_end = is_end
        self.pieces = [piece]
        self.size = len(piece)
        self.started_s = started_s


class Http2FrameReader:
    """Reads one connection, which begins with the preface and a SETTINGS frame (3.4)."""

    __slots__ = ("_block", "_buffer", "_has_settings", "_limits", "_now", "_receiver", "_stopped", "has_preface")

    def __init__(self, receiver: FrameReceiver, limits: Limits, now: Callable[[], float]) -> None:
        self._receiver = receiver
        self._limits = limits
        self._now = now
        self._buffer = b""
        self._block: _HeaderFrames | None = None
        self._has_settings = False
        self._stopped = False
        self.has_preface = False

    def read(self, data: bytes) -> None:
        """Read bytes that follow those of the last call.

        Raises:
            ConnectionFailed: the peer breaks the protocol, or a limit.
        """
        if self._buffer:
            data = self._buffer + data
        at = 0
        if not self.has_preface:
            if not data.startswith(PREFACE):
                if not PREFACE.startswith(data):
                    raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "no preface of HTTP/2")
                self._buffer = data
                return
            self.has_preface, at = True, len(PREFACE)
        end = len(data)
        frame_bytes_max = self._limits.frame_bytes_max
        while end - at >= HEADER_BYTES:
            (length_and_kind,) = unpack_u32(data, at)
            length = length_and_kind >> 8
            if length > frame_bytes_max:
                raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, "a frame exceeds MAX_FRAME_SIZE")
            payload_at = at + HEADER_BYTES
            if payload_at + length > end:
                break
            stream_id = unpack_u32(data, at + 5)[0] & STREAM_ID_MAX
            flags = data[at + 4]
            at = payload_at + length
            self._dispatch(length_and_kind & 0xFF, flags, stream_id, data[payload_at:at])
            if self._stopped:
                return
        self._buffer = data[at:]

    def stop(self) -> None:
        """Drop what is incomplete, and read nothing more, also in a call of `read` that is under way."""
        self._stopped = True
        self._buffer = b""
        self._block = None

    @property
    def block_since_s(self) -> float | None:
        """Return the time at which a header block began that is not complete; None = there is none."""
        return None if self._block is None else self._block.started_s

    def _dispatch(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and kind != CONTINUATION:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if not self._has_settings and kind != SETTINGS:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        if kind == DATA:
            data = _without_padding(payload) if flags & PADDED else payload
            self._receiver.on_data(stream_id, data, len(payload), is_end=bool(flags & END_STREAM))
            return
        read = _READERS.get(kind)
        if read is None:
            self._receiver.on_idle_frame()  # 4.1: unknown types are ignored
        else:
            read(self, flags, stream_id, payload)

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        """6.2."""
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < PRIORITY_BYTES:
                _fail_size("HEADERS")
            _check_dependency(stream_id, payload)
            payload = payload[PRIORITY_BYTES:]
        if not stream_id & 1:
            _fail_stream("HEADERS")
        if len(payload) > self._limits.header_block_bytes_max:
            _fail_block()
        is_end = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._receiver.on_headers(stream_id, payload, is_end=is_end)
        else:
            self._block = _HeaderFrames(stream_id, payload, self._now(), is_end=is_end)

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        """6.10."""
        block = self._block
        if block is None or block.stream_id != stream_id:
            _fail_stream("CONTINUATION")
        self._receiver.on_idle_frame()
        block.pieces.append(payload)
        block.size += len(payload)
        if block.size > self._limits.header_block_bytes_max:
            _fail_block()
        if flags & END_HEADERS:
            self._block = None
            self._receiver.on_headers(stream_id, b"".join(block.pieces), is_end=block.is_end)

    def _window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """6.9."""
        if len(payload) != 4:
            _fail_size("WINDOW_UPDATE")
        self._receiver.on_window_update(stream_id, unpack_u32(payload)[0] & WINDOW_MAX)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        """6.5."""
        if stream_id:
            _fail_stream("SETTINGS")
        if (flags & ACK and payload) or len(payload) % SETTING.size:
            _fail_size("SETTINGS")
        self._has_settings = True
        self._receiver.on_settings(None if flags & ACK else list(SETTING.iter_unpack(payload)))

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        """6.7."""
        if stream_id:
            _fail_stream("PING")
        if len(payload) != PING_BYTES:
            _fail_size("PING")
        self._receiver.on_ping(payload, is_ack=bool(flags & ACK))

    def _rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """6.4."""
        if len(payload) != 4:
            _fail_size("RST_STREAM")
        self._receiver.on_rst_stream(stream_id, unpack_u32(payload)[0])

    def _priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """6.3."""
        if not stream_id:
            _fail_stream("PRIORITY")
        is_sized = len(payload) == PRIORITY_BYTES
        if is_sized:
            _check_dependency(stream_id, payload)
        self._receiver.on_priority(stream_id, is_sized=is_sized)

    def _goaway(self, _flags: int, stream_id: int, payload: bytes) -> None:
        """6.8: a client that leaves still gets its answers."""
        if stream_id:
            _fail_stream("GOAWAY")
        if len(payload) < GOAWAY_BYTES_MIN:
            _fail_size("GOAWAY")
        self._receiver.on_idle_frame()

    def _push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        """8.4: a client cannot push."""
        _fail_stream("PUSH_PROMISE")


_READERS: Final[Mapping[int, Callable[[Http2FrameReader, int, int, bytes], None]]] = {
    HEADERS: Http2FrameReader._headers,
    PRIORITY: Http2FrameReader._priority,
    RST_STREAM: Http2FrameReader._rst_stream,
    SETTINGS: Http2FrameReader._settings,
    PUSH_PROMISE: Http2FrameReader._push_promise,
    PING: Http2FrameReader._ping,
    GOAWAY: Http2FrameReader._goaway,
    WINDOW_UPDATE: Http2FrameReader._window_update,
    CONTINUATION: Http2FrameReader._continuation,
}


def _without_padding(payload: bytes) -> bytes:
    """6.1: the first byte is the padding's length."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "padding exceeds its frame")
    return payload[1 : len(payload) - payload[0]]


def _check_dependency(stream_id: int, payload: bytes) -> None:
    if unpack_u32(payload)[0] & STREAM_ID_MAX == stream_id:
        raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")


def _fail_size(name: str) -> NoReturn:
    raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"{name} of a wrong size")


def _fail_stream(name: str) -> NoReturn:
    raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"{name} is not allowed on this stream")


def _fail_block() -> NoReturn:
    raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "a header block exceeds its bound")
