"""One server connection of HTTP/2 (RFC 9113) without I/O: bytes in, calls of a handler and bytes out.

`receive` reads frames and calls the handler and its streams' handlers, directly and in order. All output goes to one list,
which the owner takes by `take_output` and writes at once; `refill` then has waiting streams send. `wake` is called when
output appears outside `receive`, so the owner needs one write for all that happened in a turn of its loop. Time comes from
`now`, in seconds.

C1: any split of the input into calls of `receive` gives the same calls and the same output.
C2: bytes sent never exceed the peer's windows (`stream.py`, S1), and each queued byte is sent once its windows allow it.
C3: `unread` is the sum of the streams' unread bytes and at most `unread_bytes_max + connection_window_bytes`.
C4: what a peer makes the connection hold is bounded (`limits.py`), and the work for a frame is bounded by its bytes, by
    what is sent for it, and for SETTINGS by the open streams.
C5: after a failure nothing is read and no handler is called but `on_closed` of the open streams, and `on_failed`.
Failure: every violation of the protocol ends the connection by GOAWAY with the RFC's code, or only its stream by
RST_STREAM where the RFC says so. `receive` raises nothing for bytes of a peer; an exception of a handler passes through.
Not here: push, priorities (RFC 9113, 5.3 deprecates them: read and dropped), upgrade from HTTP/1, CONNECT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from eddyline.wire.http2.control_meter import ControlMeter
from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode
from eddyline.wire.http2.frame_reader import Http2FrameReader
from eddyline.wire.http2.frames import (
    ENABLE_PUSH,
    FRAME_BYTES_LIMIT,
    FRAME_BYTES_MIN,
    INITIAL_WINDOW,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    SETTINGS_ACK,
    STREAM_ID_MAX,
    WINDOW_MAX,
    encode_goaway,
    encode_ping,
    encode_rst_stream,
    encode_settings,
    encode_window_update,
)
from eddyline.wire.http2.hpack import BlockDecoder
from eddyline.wire.http2.limits import SETTINGS_COST, Limits
from eddyline.wire.http2.request import is_valid_trailer, parse_request
from eddyline.wire.http2.stream import Http2Stream

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN_PING: Final = b"drain\0\0\0"
"""Payload of the PING whose answer shows that the client has seen the first GOAWAY."""
KEEPALIVE_PING: Final = b"alive\0\0\0"
CODES: Final = {int(code): code for code in ErrorCode}


class ConnectionHandler(Protocol):
    """Gets the events of a connection."""

    def on_request(self, stream: Http2Stream) -> None:
        """Take a new stream, and set its `handler` or end it. `on_end` follows if the request has no data."""

    def on_oversized(self, stream: Http2Stream) -> None:
        """Take a new stream whose header list exceeds its bound; its request has the fields that fit. End it."""

    def on_drained(self) -> None:
        """Take that the connection drains and its last stream is closed: write the output and close."""

    def on_failed(self, error: ConnectionFailed) -> None:
        """Take the failure: write the output, which ends with GOAWAY, and close."""


class Http2Connection:
    """State of one connection. `begin` first, then `receive`; `lost` when the socket is gone."""

    __slots__ = (
        *("_decoder", "_goaway_id", "_handler", "_is_awake", "_is_paused", "_output", "_output_bytes", "_reader"),
        *("_reset_ids", "assembling_bytes", "failed", "initial_send_window"),
        *("is_draining", "is_full", "last_stream_id"),
        *("limits", "meter", "now", "peer_frame_bytes_max", "peer_header_list_bytes_max", "ready", "receive_window"),
        *("send_window", "sent_frame_bytes_max", "streams", "streams_total", "unread", "unsent_answers", "wake"),
    )

    def __init__(
        self, handler: ConnectionHandler, *, limits: Limits, now: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._handler = handler
        self.limits = limits
        self.now = now
        self.wake = wake
        self.streams: dict[int, Http2Stream] = {}
        """Open streams by id."""
        self.ready: dict[int, Http2Stream] = {}
        """Streams with something to send that wait for the connection's window or the socket, the next one first."""
        self.send_window = INITIAL_WINDOW
        self.receive_window = INITIAL_WINDOW
        self.unread = 0
        self.assembling_bytes = 0
        """Bytes of incomplete messages; counted by the layer above."""
        self.initial_send_window = INITIAL_WINDOW
        self.peer_frame_bytes_max = FRAME_BYTES_MIN
        self.sent_frame_bytes_max = FRAME_BYTES_MIN
        self.peer_header_list_bytes_max = WINDOW_MAX
        self.last_stream_id = 0
        self.streams_total = 0
        self.meter = ControlMeter(limits, now)
        self.unsent_answers = 0
        self.is_draining = False
        self.failed: ConnectionFailed | None = None
        self.is_full = False
        """Streams should queue: the socket takes no more, or a turn's output is full."""
        self._decoder = BlockDecoder(list_bytes_max=limits.header_list_bytes_max)
        self._reader = Http2FrameReader(self, limits, now)
        self._reset_ids: dict[int, None] = {}
        """Streams that we closed before the client had: frames on their way to them are no errors. The newest
        `streams_max`."""
        self._goaway_id = STREAM_ID_MAX
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_awake = False
        self._is_paused = False

    # -- for the owner

    def begin(self) -> None:
        """Send the server's SETTINGS, and enlarge the connection's window."""
        limits = self.limits
        settings = {
            MAX_CONCURRENT_STREAMS: limits.streams_max,
            INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            MAX_FRAME_SIZE: limits.frame_bytes_max,
            MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        self.write(encode_settings(settings))
        self._give_credit()

    def receive(self, data: bytes) -> None:
        """Read bytes of the peer; incomplete frames are kept. The output is for the caller to take, without `wake`."""
        if self.failed is not None:
            return
        self._is_awake = True
        try:
            self._reader.read(data)
        except ConnectionFailed as error:
            self.fail(error)
        finally:
            self._is_awake = bool(self._output)

    def take_output(self) -> bytes:
        """Return all output, which the caller writes before it calls anything else, and `refill` after that."""
        output = self._output
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        self._output_bytes = 0
        self._is_awake = False
        self.is_full = self._is_paused
        if not self._is_paused:
            self.unsent_answers = 0
        return data

    def refill(self) -> None:
        """Have streams that wait send. It may end the last stream of a connection that drains, and so call the handler."""
        if self.ready and not self.is_full:
            self.pump()

    def pause(self) -> None:
        """Take that the socket is full."""
        self._is_paused = self.is_full = True

    def resume(self) -> None:
        """Take that the socket is writable again."""
        self._is_paused = False
        self.unsent_answers = 0
        self.is_full = self._output_bytes >= self.limits.output_bytes_mark
        self.pump()

    def drain(self) -> None:
        """Announce the end (6.8): GOAWAY that refuses nothing yet, and a PING whose answer leads to `refuse_streams`."""
        if not self.is_draining and self.failed is None:
            self.is_draining = True
            self.write(encode_goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR) + encode_ping(DRAIN_PING))

    def refuse_streams(self) -> None:
        """Send the GOAWAY that names the last stream; later ones are ignored. For the owner if no answer comes."""
        if self._goaway_id == STREAM_ID_MAX and self.failed is None:
            self.is_draining = True
            self._goaway_id = self.last_stream_id
            self.write(encode_goaway(self.last_stream_id, ErrorCode.NO_ERROR))
            self._check_drained()

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self.write(encode_ping(KEEPALIVE_PING))

    def fail(self, error: ConnectionFailed) -> None:
        """End the connection with GOAWAY; all streams close."""
        if self.failed is not None:
            return
        self.failed = error
        self.write(encode_goaway(self.last_stream_id, error.code, str(error)))
        self.lost(error.code)
        self._handler.on_failed(error)

    def lost(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Close all streams, since the socket is gone. Idempotent."""
        if self.failed is None:
            self.failed = ConnectionFailed(code, "the connection is closed")
        self._reader.stop()
        for stream in list(self.streams.values()):
            self.close_stream(stream, code)

    @property
    def has_preface(self) -> bool:
        """Return True once the client has sent its preface."""
        return self._reader.has_preface

    @property
    def header_block_since_s(self) -> float | None:
        """Return the time at which a header block began that is not complete; None = there is none."""
        return self._reader.block_since_s

    # -- for streams

    def write(self, data: bytes) -> None:
        """Append to the output."""
        self._output.append(data)
        self._output_bytes += len(data)
        if self._is_paused:
            self.unsent_answers += 1
        if self._output_bytes >= self.limits.output_bytes_mark:
            self.is_full = True
        if not self._is_awake:
            self._is_awake = True
            self.wake()

    def pump(self) -> None:
        """Send what waits, a frame of each stream in turn, while the connection's window and the output allow it."""
        ready = self.ready
        while ready and self.send_window > 0 and not self.is_full:
            stream_id = next(iter(ready))
            stream = ready.pop(stream_id)
            room = min(stream.send_window, self.send_window, self.sent_frame_bytes_max)
            self.send_window -= stream.send_next(room)
            if stream.queued_bytes and stream.send_window > 0:
                ready[stream_id] = stream
            stream.on_sent()

    def on_consumed(self, size: int) -> None:
        """Take that a stream's handler took `size` bytes."""
        self.unread -= size
        self._give_credit()

    def close_stream(self, stream: Http2Stream, code: ErrorCode | None) -> None:
        """Forget a stream, and tell its handler."""
        if stream.is_closed:
            return
        stream.is_closed = True
        del self.streams[stream.id]
        self.ready.pop(stream.id, None)
        stream.discard()
        if not stream.is_ended:
            self._remember_reset(stream.id)
        if stream.unread:
            self.unread -= stream.unread
            stream.unread = 0
            self._give_credit()
        stream.handler.on_closed(code)
        self._check_drained()

    # -- for the reader

    def on_data(self, stream_id: int, data: bytes, payload_bytes: int, *, is_end: bool) -> None:
        self.receive_window -= payload_bytes
        if self.receive_window < 0:
            raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_ended:
            self._give_credit()
            self._on_data_of_closed(stream, stream_id)
            return
        stream.receive_window -= payload_bytes
        if stream.receive_window < 0:
            self._give_credit()
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if not data and not is_end:
            self._charge()
        stream.received_bytes += len(data)
        stream.unread += payload_bytes
        self.unread += payload_bytes
        self._give_credit()
        length = stream.request.content_length
        if length is not None and (stream.received_bytes > length or (is_end and stream.received_bytes != length)):
            self._reset(stream, ErrorCode.PROTOCOL_ERROR)  # 8.1.1
            return
        if is_end:
            stream.is_ended = True
        if payload_bytes != len(data):
            stream.consume(payload_bytes - len(data))
        if data:
            stream.handler.on_data(data)
        if is_end and not stream.is_closed:
            stream.handler.on_end()

    def on_headers(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        headers = self._decoder.decode(block)  # 4.3: whatever becomes of the stream, the table must follow the peer's
        if stream_id <= self.last_stream_id:
            self._on_trailers(stream_id, is_end=is_end, is_valid=is_valid_trailer(headers.fields))
            return
        if stream_id > self._goaway_id:  # 6.8: the client tries it again on another connection
            self._charge()
            return
        self.last_stream_id = stream_id
        if len(self.streams) >= self.limits.streams_max:
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM)
            return
        request = headers.request or parse_request(headers.fields)
        if request is None:
            self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR)
            return
        headers.request = request
        stream = Http2Stream(self, stream_id, request)
        self.streams[stream_id] = stream
        self.streams_total += 1
        stream.is_ended = is_end
        if is_end and request.content_length:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR)  # 8.1.1
            return
        if headers.is_oversized:
            self._charge()
            self._handler.on_oversized(stream)
            return
        self.meter.paying += 1
        self._handler.on_request(stream)
        if is_end and not stream.is_closed:
            stream.handler.on_end()

    def on_window_update(self, stream_id: int, increment: int) -> None:
        self._charge_unless_paid()
        if not stream_id:
            if not increment:
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "a window of the connection grows by 0")
            self.send_window += increment
            if self.send_window > WINDOW_MAX:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window exceeds 2^31-1")
            self.pump()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id, "WINDOW_UPDATE")
        elif not increment:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR)
        elif stream.send_window + increment > WINDOW_MAX:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
        else:
            stream.on_credit(increment)
            self._on_window(stream)
            self.pump()

    def on_settings(self, settings: list[tuple[int, int]] | None) -> None:
        self._charge(SETTINGS_COST)
        if settings is None:
            return
        for key, value in settings:
            if key == INITIAL_WINDOW_SIZE:
                self._on_initial_window(value)
            elif key == MAX_FRAME_SIZE:
                if not FRAME_BYTES_MIN <= value <= FRAME_BYTES_LIMIT:
                    raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its bounds")
                self.peer_frame_bytes_max = value
                self.sent_frame_bytes_max = min(value, self.limits.sent_frame_bytes_max)
            elif key == MAX_HEADER_LIST_SIZE:
                self.peer_header_list_bytes_max = value
            elif key == ENABLE_PUSH and value > 1:
                raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        self.write(SETTINGS_ACK)
        self.pump()

    def on_ping(self, payload: bytes, *, is_ack: bool) -> None:
        self._charge_unless_paid()
        if not is_ack:
            self.write(encode_ping(payload, ack=True))
        elif payload == DRAIN_PING and self.is_draining:
            self.refuse_streams()

    def on_rst_stream(self, stream_id: int, code: int) -> None:
        self._check_not_idle(stream_id, "RST_STREAM")
        self._charge()
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.is_ended = True
            self.close_stream(stream, CODES.get(code, ErrorCode.INTERNAL_ERROR))

    def on_priority(self, stream_id: int, *, is_sized: bool) -> None:
        self._charge()
        if is_sized:
            return
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._reset(stream, ErrorCode.FRAME_SIZE_ERROR)
        else:
            self._refuse(stream_id, ErrorCode.FRAME_SIZE_ERROR)

    def on_idle_frame(self) -> None:
        self._charge()

    # -- parts

    def _on_data_of_closed(self, stream: Http2Stream | None, stream_id: int) -> None:
        if stream is not None:
            self._reset(stream, ErrorCode.STREAM_CLOSED)
            return
        self._check_not_idle(stream_id, "DATA")
        self._charge()
        if stream_id not in self._reset_ids and stream_id <= self._goaway_id:
            self._refuse(stream_id, ErrorCode.STREAM_CLOSED)

    def _on_trailers(self, stream_id: int, *, is_end: bool, is_valid: bool) -> None:
        """8.1: the fields after the data; gRPC's clients send none."""
        stream = self.streams.get(stream_id)
        if stream is None:
            self._charge()
            if stream_id not in self._reset_ids:
                raise ConnectionFailed(ErrorCode.STREAM_CLOSED, "HEADERS of a closed stream")  # 5.1
        elif stream.is_ended:
            self._reset(stream, ErrorCode.STREAM_CLOSED)
        elif not is_end or not is_valid or stream.request.content_length not in (None, stream.received_bytes):
            self._reset(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.is_ended = True
            stream.handler.on_end()

    def _on_window(self, stream: Http2Stream) -> None:
        """Keep S3 after a change of a stream's window."""
        if stream.send_window <= 0:
            self.ready.pop(stream.id, None)
        elif stream.queued_bytes:
            self.ready[stream.id] = stream

    def _on_initial_window(self, value: int) -> None:
        """6.9.2: the windows of open streams change by the difference, also below zero."""
        if value > WINDOW_MAX:
            raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE exceeds 2^31-1")
        difference = value - self.initial_send_window
        self.initial_send_window = value
        if not difference:
            return
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > WINDOW_MAX:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window exceeds 2^31-1")
            self._on_window(stream)

    def _charge(self, cost: int = 1) -> None:
        """Count a frame that carries nothing, and bound what a peer makes us answer that does not read its socket."""
        self.meter.charge(cost)
        if self.unsent_answers > self.limits.unsent_answers_max:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too many answers that are not read")

    def _charge_unless_paid(self) -> None:
        self.meter.charge_unless_paid()
        if self.unsent_answers > self.limits.unsent_answers_max:
            raise ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "too many answers that are not read")

    def _reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream for an error of the peer (5.4.2). Counted: an error a stream is a flood too."""
        self._charge()
        stream.reset(code)

    def _refuse(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream that has no state here."""
        self._charge()
        self.write(encode_rst_stream(stream_id, code))
        self._remember_reset(stream_id)

    def _remember_reset(self, stream_id: int) -> None:
        self._reset_ids[stream_id] = None
        if len(self._reset_ids) > self.limits.streams_max:
            del self._reset_ids[next(iter(self._reset_ids))]

    def _give_credit(self) -> None:
        """Keep C3: fill the connection's window once half of it is used, unless too much is unread."""
        window = self.limits.connection_window_bytes
        credit = window - self.receive_window
        if credit * 2 < window or self.failed is not None or self.unread > self.limits.unread_bytes_max:
            return
        self.receive_window = window
        self.write(encode_window_update(0, credit))

    def _check_not_idle(self, stream_id: int, name: str) -> None:
        """5.1: frames of a stream that was never opened. Ids after the last GOAWAY were opened, and ignored."""
        if not stream_id & 1 or self.last_stream_id < stream_id <= self._goaway_id:
            raise ConnectionFailed(ErrorCode.PROTOCOL_ERROR, f"{name} of an idle stream")

    def _check_drained(self) -> None:
        if self._goaway_id != STREAM_ID_MAX and not self.streams and self.failed is None:
            self._handler.on_drained()
