"""A connection of `eddyline.wire` without a socket: bytes in, recorded events and frames out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eddyline.wire.http2.connection import Http2Connection
from eddyline.wire.http2.limits import Limits
from tests.support.wire.frames import HELLO, Frame, frames_of

if TYPE_CHECKING:
    from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode
    from eddyline.wire.http2.stream import Http2Stream

Event = tuple[object, ...]


class Recorder:
    """Handler of a stream that records, and consumes at once if `consumes`."""

    def __init__(self, peer: Peer, stream: Http2Stream) -> None:
        self._peer = peer
        self._stream = stream

    def on_data(self, data: bytes) -> None:
        self._peer.events.append(("data", self._stream.id, data))
        if self._peer.consumes:
            self._stream.consume(len(data))

    def on_end(self) -> None:
        self._peer.events.append(("end", self._stream.id))

    def on_writable(self) -> None:
        self._peer.events.append(("writable", self._stream.id))

    def on_closed(self, code: ErrorCode | None) -> None:
        self._peer.events.append(("closed", self._stream.id, None if code is None else code.name))


class Peer:
    """The client of one connection, whose time is `now_s`."""

    def __init__(self, limits: Limits | None = None, *, greets: bool = True, consumes: bool = True) -> None:
        self.now_s = 0.0
        self.wakes = 0
        self.events: list[Event] = []
        self.streams: dict[int, Http2Stream] = {}
        self.consumes = consumes
        self.failure: ConnectionFailed | None = None
        self.connection = Http2Connection(self, limits=limits or Limits(), now=lambda: self.now_s, wake=self._wake)
        if greets:
            self.connection.begin()
            self.connection.receive(HELLO)
            self.connection.take_output()

    def send(self, *parts: bytes) -> list[Frame]:
        """Let the connection read, and return the frames it sends."""
        for part in parts:
            self.connection.receive(part)
        return self.sent()

    def sent(self) -> list[Frame]:
        """All frames that it sends until it has nothing more to send."""
        frames: list[Frame] = []
        while output := self.connection.take_output():
            frames += frames_of(output)
            self.connection.refill()
        return frames

    def stream(self, stream_id: int) -> Http2Stream:
        """A stream that the client has opened."""
        return self.streams[stream_id]

    def on_request(self, stream: Http2Stream) -> None:
        self.streams[stream.id] = stream
        stream.handler = Recorder(self, stream)
        self.events.append(("request", stream.id, stream.request.fields))

    def on_oversized(self, stream: Http2Stream) -> None:
        self.events.append(("oversized", stream.id))
        stream.end(b"\x88")

    def on_drained(self) -> None:
        self.events.append(("drained",))

    def on_failed(self, error: ConnectionFailed) -> None:
        self.events.append(("failed", error.code.name))
        self.failure = error

    def _wake(self) -> None:
        self.wakes += 1
