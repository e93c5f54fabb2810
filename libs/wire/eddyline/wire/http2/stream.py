"""One stream of a connection (RFC 9113, 5): what it sends, what it may still receive, and its end.

A client opens streams, so a stream is open, half-closed (remote) once the client has ended it, or closed. It is never
half-closed (local): after our trailers it is closed, with RST_STREAM NO_ERROR if the client had not ended it (8.1).

S1: bytes sent never exceed the windows that the peer gave for the stream and for the connection.
S2: `receive_window + unread + credit not announced = stream_window_bytes`, so a stream holds at most that many bytes that
    its handler has not consumed.
S3: a stream waits in `connection.ready` exactly while it has something to send and its own window allows a byte of it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from eddyline.wire.http2.errors import ErrorCode
from eddyline.wire.http2.frames import (
    DATA,
    encode_headers,
    encode_rst_stream,
    encode_window_update,
    pack_header,
)

if TYPE_CHECKING:
    from eddyline.wire.http2.connection import Http2Connection
    from eddyline.wire.http2.request import Request


class StreamHandler(Protocol):
    """Gets the events of one stream. Methods are called inside `Http2Connection.receive` or a call of `Http2Stream`."""

    def on_data(self, data: bytes) -> None:
        """Take bytes of the request; each stays counted as unread until `Http2Stream.consume`."""

    def on_end(self) -> None:
        """Take the end of the request."""

    def on_writable(self) -> None:
        """Take that the queue fell to half of its mark, after a send that returned False."""

    def on_closed(self, code: ErrorCode | None) -> None:
        """Take the end of the stream: None = all was sent; otherwise the code of the reset, by either side."""


class _Ignored:
    """Handler of a stream that is refused before it has one."""

    def on_data(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_writable(self) -> None: ...

    def on_closed(self, code: ErrorCode | None) -> None: ...


IGNORED: Final[StreamHandler] = _Ignored()


class Http2Stream:
    """A stream that a client opened. Made by `Http2Connection`; `handler` is set by the connection's handler."""

    __slots__ = (
        "_end",
        "_head_at",
        "_queue",
        "_uncredited_mark",
        "_wants_room",
        "connection",
        "handler",
        "id",
        "is_closed",
        "is_ended",
        "is_opened",
        "queued_bytes",
        "queued_since_s",
        "receive_window",
        "received_bytes",
        "request",
        "send_window",
        "uncredited_since_s",
        "unread",
    )

    def __init__(self, connection: Http2Connection, stream_id: int, request: Request) -> None:
        self.connection = connection
        self.id = stream_id
        self.request = request
        self.handler: StreamHandler = IGNORED
        self.send_window = connection.initial_send_window
        self.receive_window = connection.limits.stream_window_bytes
        self.unread = 0
        """Bytes received and not consumed yet."""
        self.received_bytes = 0
        self.is_opened = False
        """The response's header fields were sent."""
        self.is_ended = False
        """The client has ended its side."""
        self.is_closed = False
        self._queue: deque[bytes] = deque()
        self._head_at = 0
        """Bytes of the queue's first entry that were sent."""
        self.queued_bytes = 0
        self.queued_since_s = 0.0
        """Time at which the queue's first entry came to its head; meaningful while `queued_bytes`."""
        self.uncredited_since_s = 0.0
        """Since when bytes are sent for which the peer has not given back its window, at the latest; 0 = there are none."""
        self._uncredited_mark = 0
        """Bytes that the peer has still to give back until all that were sent at `uncredited_since_s` are."""
        self._end: bytes | None = None
        self._wants_room = False

    # -- sending

    def open(self, block: bytes) -> None:
        """Send the response's header fields, an encoded block. Once a stream, before any data."""
        assert not self.is_opened
        self.is_opened = True
        if not self.is_closed:
            connection = self.connection
            connection.write(encode_headers(self.id, block, frame_bytes_max=connection.peer_frame_bytes_max))

    def send(self, data: bytes) -> bool:
        """Send bytes after the header fields, or queue them while a window or the socket is full.

        Returns False if the sender should wait for `on_writable`, and for a stream that is closed. A sender that goes on
        ends the stream at `queue_bytes_max`.
        """
        connection = self.connection
        size = len(data)
        if (
            self.queued_bytes
            or size > self.send_window
            or size > connection.send_window
            or size > connection.sent_frame_bytes_max
            or connection.is_full
            or self.is_closed
        ):
            return self._enqueue(data)
        self.send_window -= size
        connection.send_window -= size
        connection.write(pack_header(size << 8 | DATA, 0, self.id) + data)
        connection.meter.paying += 1
        if not self.uncredited_since_s:
            self._mark_uncredited()
        return True

    def end(self, block: bytes) -> None:
        """End the response after all that is queued. `block` are its trailers; without `open` before, all of its fields."""
        if self.is_closed or self._end is not None:
            return
        self.is_opened = True
        frame_bytes_max = self.connection.peer_frame_bytes_max
        self._end = encode_headers(self.id, block, end_stream=True, frame_bytes_max=frame_bytes_max)
        if not self.queued_bytes:
            self._finish()

    def reset(self, code: ErrorCode) -> None:
        """End the stream at once; what is queued is dropped."""
        if not self.is_closed:
            self.connection.write(encode_rst_stream(self.id, code))
            self.connection.close_stream(self, code)

    def ask_for_room(self) -> None:
        """Have `on_writable` called once the queue is at most half of its mark. Not before that, so check it first."""
        self._wants_room = True

    def respond(self, frames: bytes, data_bytes: int) -> bool:
        """Send a whole response, already made as frames with the last one END_STREAM, if both windows allow it now.

        `data_bytes` = the payload of its only DATA frame. Returns False if nothing was sent.
        """
        connection = self.connection
        if (
            data_bytes > self.send_window
            or data_bytes > connection.send_window
            or data_bytes > connection.sent_frame_bytes_max
            or connection.is_full
            or self.is_closed
            or self.is_opened
        ):
            return False
        self.is_opened = True
        self.send_window -= data_bytes
        connection.send_window -= data_bytes
        connection.meter.paying += 1
        self._end = frames
        self._finish()
        return True

    def send_frame(self, frame: bytes, data_bytes: int) -> bool:
        """Send one DATA frame of this stream's id, made by the caller, if it can be sent now; False: nothing was done."""
        connection = self.connection
        if (
            self.queued_bytes
            or not self.is_opened
            or data_bytes > self.send_window
            or data_bytes > connection.send_window
            or data_bytes > connection.sent_frame_bytes_max
            or connection.is_full
            or self.is_closed
            or self._end is not None
        ):
            return False
        self.send_window -= data_bytes
        connection.send_window -= data_bytes
        connection.write(frame)
        connection.meter.paying += 1
        if not self.uncredited_since_s:
            self._mark_uncredited()
        return True

    # -- receiving

    def consume(self, size: int) -> None:
        """Take `size` unread bytes as consumed: the client may send as many more."""
        assert 0 <= size <= self.unread or self.is_closed
        if self.is_closed or not size:
            return
        self.unread -= size
        connection = self.connection
        window = connection.limits.stream_window_bytes
        credit = window - self.receive_window - self.unread
        if credit * 2 >= window and not self.is_ended:
            self.receive_window += credit
            connection.write(encode_window_update(self.id, credit))
        connection.on_consumed(size)

    # -- for the connection

    def send_next(self, room: int) -> int:
        """Send one frame of at most `room` bytes from the queue, and return its size. `room` and the queue are not empty."""
        head = self._queue[0]
        at = self._head_at
        size = min(room, len(head) - at)
        self.send_window -= size
        self.queued_bytes -= size
        self.connection.write(pack_header(size << 8 | DATA, 0, self.id) + head[at : at + size])
        if at + size == len(head):
            self._queue.popleft()
            self._head_at = 0
            self.queued_since_s = self.connection.now()
            self.connection.meter.paying += 1
        else:
            self._head_at = at + size
        if not self.uncredited_since_s:
            self._mark_uncredited()
        return size

    @property
    def uncredited_bytes(self) -> int:
        """Return the bytes sent for which the peer has not given back its window."""
        return max(self.connection.initial_send_window - self.send_window, 0)

    def on_credit(self, increment: int) -> None:
        """Take that the peer gives back its window."""
        self.send_window += increment
        self._uncredited_mark -= increment
        if self.uncredited_since_s and self._uncredited_mark <= 0:
            self._mark_uncredited()

    def on_sent(self) -> None:
        """Go on after frames of the queue were sent: the end, or the sender that waits."""
        if not self.queued_bytes and self._end is not None:
            self._finish()
        elif self._wants_room and self.queued_bytes * 2 <= self.connection.limits.queue_bytes_mark:
            self._wants_room = False
            self.handler.on_writable()

    def discard(self) -> None:
        """Drop the queue of a stream that is closed."""
        self._queue.clear()
        self.queued_bytes = 0

    def _enqueue(self, data: bytes) -> bool:
        if self.is_closed or self._end is not None:
            return False
        connection = self.connection
        limits = connection.limits
        if self.queued_bytes and self.queued_bytes + len(data) > limits.queue_bytes_max:
            self.reset(ErrorCode.ENHANCE_YOUR_CALM)
            return False
        if not self.queued_bytes:
            self.queued_since_s = connection.now()
        if data:
            self._queue.append(data)
            self.queued_bytes += len(data)
        if self.send_window > 0:
            connection.ready[self.id] = self
            connection.pump()
        if self.queued_bytes >= limits.queue_bytes_mark:
            self._wants_room = True
            return False
        return True

    def _mark_uncredited(self) -> None:
        """Take the bytes that are not given back now as the ones whose age is measured."""
        self._uncredited_mark = self.uncredited_bytes
        self.uncredited_since_s = self.connection.now() if self._uncredited_mark else 0.0

    def _finish(self) -> None:
        assert self._end is not None
        connection = self.connection
        frames = self._end
        if not self.is_ended:
            frames += encode_rst_stream(self.id, ErrorCode.NO_ERROR)
        connection.write(frames)
        connection.close_stream(self, None)
