"""Limits of one connection: what a peer may make the server hold, and how much work it may cause.

Memory that one connection can hold is at most

    connection_window_bytes + unread_bytes_max + assembling_bytes_max        received
    + streams_max * max(queue_bytes_max, a message)                          to be sent
    + output_bytes_mark + 2 * header_block_bytes_max

The number of connections is bounded by the listener.
"""

from __future__ import annotations

from dataclasses import dataclass

from eddyline.wire.http2.frames import FRAME_BYTES_LIMIT, FRAME_BYTES_MIN, INITIAL_WINDOW, WINDOW_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a connection. All are in bytes unless the name says otherwise."""

    streams_max: int = 1_024
    """Open streams; further ones are REFUSED_STREAM. gRPC: unbounded. nginx: 128, above which a client that holds long
    streams on one connection waits for ever. A stream without traffic costs 1 KiB."""
    stream_window_bytes: int = 512 << 10
    """Bytes of a stream that its handler has not taken. RFC 9113: 64 KiB, which gives 6 MB/s at a round trip of 10 ms."""
    connection_window_bytes: int = 4 << 20
    """Bytes that a client may send ahead on all streams together."""
    unread_bytes_max: int = 16 << 20
    """Bytes that handlers have not taken, of all streams. Below it the connection's window is given back on receipt, so
    that a stream whose handler waits does not stop the others (as grpc-go does). Above it, only as handlers take."""
    assembling_bytes_max: int = 64 << 20
    """Bytes of messages that have not arrived whole. A message beyond it ends its call, RESOURCE_EXHAUSTED."""
    message_bytes_max: int = 4 << 20
    """Of a received message; a larger one ends its call, RESOURCE_EXHAUSTED. gRPC: the same."""
    sent_message_bytes_max: int = 64 << 20
    """Of a sent message; a larger one ends its call, RESOURCE_EXHAUSTED. gRPC: 4 GiB."""
    frame_bytes_max: int = FRAME_BYTES_MIN
    """Of a received frame's payload. RFC 9113: 16 KiB."""
    sent_frame_bytes_max: int = 128 << 10
    """Of a sent DATA frame, if the peer allows it. Larger ones delay other streams of the connection."""
    header_block_bytes_max: int = 32 << 10
    """Of a compressed header block with its CONTINUATION frames; more ends the connection, ENHANCE_YOUR_CALM."""
    header_list_bytes_max: int = 32 << 10
    """Of a request's fields after decoding, with 32 bytes a field; more ends the call, RESOURCE_EXHAUSTED. gRPC: 16 KiB."""
    queue_bytes_mark: int = 256 << 10
    """Bytes of a stream that wait for the peer's window or socket, from which on a sender should wait."""
    queue_bytes_max: int = 1 << 20
    """Bytes at which a stream that goes on sending ends, ENHANCE_YOUR_CALM, which clients report as RESOURCE_EXHAUSTED.
    One message is taken by an empty queue, however large it is."""
    output_bytes_mark: int = 64 << 10
    """Bytes of output of one turn of the loop, from which on streams queue: 600 messages of 100 bytes, 2 ms of the loop."""
    control_frames_max: int = 2_000
    """Frames in `control_interval_s` that make work and carry nothing; more ends the connection, ENHANCE_YOUR_CALM.
    Counted: RST_STREAM, PING, SETTINGS (10 each), PRIORITY, CONTINUATION, WINDOW_UPDATE, empty DATA, unknown types, frames
    of closed streams, refused and malformed requests. Each request and each message that we send pays for three of PING and
    WINDOW_UPDATE, since gRPC's core sends them at that rate."""
    control_interval_s: float = 10.0
    unsent_answers_max: int = 1_000
    """Acknowledgements and resets for a peer that does not read its socket; more ends the connection."""

    def __post_init__(self) -> None:
        """Raises ValueError for limits that contradict each other or RFC 9113."""
        bounds = (
            (1 <= self.streams_max <= WINDOW_MAX, "streams_max"),
            (INITIAL_WINDOW <= self.stream_window_bytes <= WINDOW_MAX, "stream_window_bytes"),
            (INITIAL_WINDOW <= self.connection_window_bytes <= WINDOW_MAX, "connection_window_bytes"),
            (self.message_bytes_max <= self.assembling_bytes_max, "assembling_bytes_max"),
            (FRAME_BYTES_MIN <= self.frame_bytes_max <= FRAME_BYTES_LIMIT, "frame_bytes_max"),
            (FRAME_BYTES_MIN <= self.sent_frame_bytes_max <= FRAME_BYTES_LIMIT, "sent_frame_bytes_max"),
            (0 < self.queue_bytes_mark <= self.queue_bytes_max, "queue_bytes_mark"),
        )
        for is_kept, name in bounds:
            if not is_kept:
                raise ValueError(f"{name} is out of its bounds")


SETTINGS_COST = 10
"""Control frames that a SETTINGS frame counts for: it may change the window of every stream."""
