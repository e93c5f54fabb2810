"""One socket: `http2.connection` on the event loop, with TLS where its listener has certificates.

Writing: all that streams send in a turn of the loop becomes one write of the socket. Output of `data_received` is written at
its end; other output schedules one write for the next turn. A turn writes at most `output_bytes_mark` of streams' data.
Timers: none of its own. The listener calls `examine` every `sweep_s` seconds, which keeps all of `timeouts.py`.
Failure: an exception of the layer above is logged and ends the connection, INTERNAL_ERROR; the listener goes on.
Threading: event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, cast

from eddyline.wire.http2.connection import Http2Connection
from eddyline.wire.http2.errors import ConnectionFailed, ErrorCode
from eddyline.wire.transport.counters import StreamBacklog
from eddyline.wire.transport.tls import TlsFailed, TlsSession

if TYPE_CHECKING:
    import ssl

    from eddyline.wire.http2.limits import Limits
    from eddyline.wire.http2.stream import Http2Stream
    from eddyline.wire.transport.counters import Counters
    from eddyline.wire.transport.timeouts import Timeouts

SOCKET_BYTES_MARK: Final = 256 << 10
"""Bytes that the socket has not taken, from which on streams queue. asyncio: 64 KiB, less than a message of a batch."""

_LOG: Final = logging.getLogger(__name__)


class Service(Protocol):
    """Gets the requests of all connections. Called inside `data_received`."""

    def on_request(self, stream: Http2Stream, connection: SocketConnection) -> None:
        """Take a new stream: set its handler, or end it."""

    def on_oversized(self, stream: Http2Stream, connection: SocketConnection) -> None:
        """End a stream whose request has too large a header list."""


class Owner(Protocol):
    """The listener of a connection."""

    service: Service
    counters: Counters
    limits: Limits
    timeouts: Timeouts
    loop: asyncio.AbstractEventLoop

    def admit(self, connection: SocketConnection) -> bool:
        """Count a new connection; False = close it at once."""

    def on_preface(self, connection: SocketConnection) -> None:
        """Take that the client speaks HTTP/2: the connection is no longer half open."""

    def release(self, connection: SocketConnection) -> None:
        """Forget a closed connection."""


class SocketConnection(asyncio.Protocol):
    """A connection of a listener."""

    __slots__ = (
        *("_age_s", "_close_by_s", "_drain_at_s", "_flush_is_due", "_http2", "_is_refused"),
        *("_owner", "_ping_at_s", "_received_at_s", "_refuse_by_s", "_tls", "_transport", "opened_s", "peer"),
    )

    def __init__(self, owner: Owner, context: ssl.SSLContext | None, *, age_s: float) -> None:
        """`context` None = no TLS. `age_s` = the age at which it drains, 0 = never."""
        self._owner = owner
        self._tls = TlsSession(context) if context is not None else None
        self._http2 = Http2Connection(self, limits=owner.limits, now=owner.loop.time, wake=self._schedule_flush)
        self._transport: asyncio.Transport | None = None
        self._flush_is_due = False
        self._is_refused = False
        self.opened_s = self._received_at_s = owner.loop.time()
        self._age_s = age_s
        self._ping_at_s = 0.0
        """Time of a PING for which no byte has come; 0 = none."""
        self._refuse_by_s = self._drain_at_s = self._close_by_s = 0.0
        self.peer = "unknown:"
        """Address of the client as gRPC writes it."""

    # -- of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.peer = format_peer(transport.get_extra_info("peername"))
        if not self._owner.admit(self):
            self._is_refused = True
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=SOCKET_BYTES_MARK)
        if self._tls is None:
            self._begin()

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self._close_by_s:
            return
        self._received_at_s = self._owner.loop.time()
        self._ping_at_s = 0.0
        if self._tls is None:
            self._receive(data)
        else:
            self._receive_tls(self._tls, data)

    def pause_writing(self) -> None:
        self._http2.pause()

    def resume_writing(self) -> None:
        self._http2.resume()

    def eof_received(self) -> bool:
        return False  # the transport closes: a client of gRPC closes both sides

    def connection_lost(self, _error: Exception | None) -> None:
        if not self._is_refused:
            self._http2.lost()
            self._owner.release(self)
        self._transport = None

    # -- of http2.ConnectionHandler

    def on_request(self, stream: Http2Stream) -> None:
        self._owner.counters.streams_total += 1
        self._owner.service.on_request(stream, self)

    def on_oversized(self, stream: Http2Stream) -> None:
        self._owner.service.on_oversized(stream, self)

    def on_drained(self) -> None:
        self.close()

    def on_failed(self, error: ConnectionFailed) -> None:
        if self._http2.has_preface:
            self._owner.counters.connections_failed[error.code.name] += 1
        else:
            self._owner.counters.handshakes_failed += 1
        self.close()

    # -- for the listener

    def examine(self, now_s: float) -> None:
        """Keep the times of `timeouts.py`."""
        timeouts = self._owner.timeouts
        http2 = self._http2
        if self._close_by_s:
            if now_s >= self._close_by_s:
                self.abort()
        elif not http2.has_preface:
            if now_s - self.opened_s >= timeouts.handshake_s:
                self._owner.counters.handshakes_failed += 1
                self.abort()
        elif http2.header_block_since_s is not None and now_s - http2.header_block_since_s >= timeouts.header_block_s:
            http2.fail(ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, "a header block takes too long"))
        elif self._ping_at_s:
            if now_s - self._ping_at_s >= timeouts.keepalive_timeout_s:
                self._owner.counters.keepalive_timeouts += 1
                self.abort()
        else:
            if timeouts.keepalive_s and now_s - self._received_at_s >= timeouts.keepalive_s:
                self._ping_at_s = now_s
                http2.ping()
            self._examine_age(now_s)

    def _examine_age(self, now_s: float) -> None:
        if self._age_s and not self._drain_at_s and now_s - self.opened_s >= self._age_s:
            self.drain()
        if self._refuse_by_s and now_s >= self._refuse_by_s:
            self._refuse_by_s = 0.0
            self._http2.refuse_streams()
        grace_s = self._owner.timeouts.age_grace_s
        if self._age_s and grace_s and self._drain_at_s and now_s - self._drain_at_s >= grace_s:
            self.close()

    def drain(self) -> None:
        """Announce the end; the connection closes after its last call, or at once without a preface."""
        if self._drain_at_s:
            return
        self._drain_at_s = self._owner.loop.time()
        self._refuse_by_s = self._drain_at_s + self._owner.timeouts.drain_ping_s
        if self._http2.has_preface:
            self._http2.drain()
        else:
            self.close()

    def close(self) -> None:
        """Write what is due, and close. Open streams end with the socket."""
        transport = self._transport
        if transport is None or self._close_by_s:
            return
        self.flush()
        if self._close_by_s:
            return  # what was written let the last stream end
        self._close_by_s = self._owner.loop.time() + self._owner.timeouts.linger_s
        if self._tls is not None and self._tls.is_open:
            transport.write(self._tls.close())
        transport.close()

    def end(self) -> None:
        """Refuse new streams, end open ones with the socket, and close."""
        self._http2.refuse_streams()
        self.close()

    def abort(self) -> None:
        """Close without another write."""
        if self._transport is not None:
            self._transport.abort()

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the properties of the client's certificate under gRPC's names; empty without TLS."""
        return self._tls.auth_context() if self._tls is not None else {}

    def backlogs(self, now_s: float) -> list[StreamBacklog]:
        """Return what the client has not taken, for each open stream."""
        return [self.backlog(stream, now_s) for stream in self._http2.streams.values()]

    def backlog(self, stream: Http2Stream, now_s: float) -> StreamBacklog:
        """Return what the client has not taken of one stream of this connection."""
        since_s = stream.uncredited_since_s
        return StreamBacklog(
            peer=self.peer,
            path=stream.request.path.decode("latin-1"),
            stream_id=stream.id,
            queued_bytes=stream.queued_bytes,
            queued_age_s=now_s - stream.queued_since_s if stream.queued_bytes else 0.0,
            uncredited_bytes=stream.uncredited_bytes,
            uncredited_age_s=now_s - since_s if since_s else 0.0,
        )

    # -- parts

    def _begin(self) -> None:
        self._http2.begin()

    def _receive(self, data: bytes) -> None:
        self._owner.counters.received_bytes += len(data)
        had_preface = self._http2.has_preface
        try:
            self._http2.receive(data)
        except (
            Exception
        ) as error:  # the layer above is at fault, not the peer: this connection ends, the listener goes on
            _LOG.exception("a connection ends by an unexpected error", exc_info=error)
            self._http2.fail(ConnectionFailed(ErrorCode.INTERNAL_ERROR, "internal error"))
        if not had_preface and self._http2.has_preface:
            self._owner.on_preface(self)
        if not self._flush_is_due:
            self.flush()

    def _receive_tls(self, tls: TlsSession, data: bytes) -> None:
        was_open = tls.is_open
        plain = tls.receive(data)
        self._write_raw(tls.take_output())
        if tls.is_open and not was_open:
            self._begin()
        if plain:
            self._receive(plain)
        if tls.failure:
            self._owner.counters.handshakes_failed += not tls.is_open
            self._end_transport()
        elif tls.is_closed:
            self.close()

    def _end_transport(self) -> None:
        if self._transport is not None:
            self._close_by_s = self._owner.loop.time() + self._owner.timeouts.linger_s
            self._transport.close()

    def _schedule_flush(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._owner.loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._flush_is_due = False
        self.flush()

    def flush(self) -> None:
        """Write the output now, in one write, and have streams that wait fill it again."""
        data = self._http2.take_output()
        if self._close_by_s:
            return
        if data:
            self._owner.counters.sent_bytes += len(data)
            try:
                self._write_raw(data if self._tls is None else self._tls.encrypt(data))
            except TlsFailed:
                self.abort()
                return
        self._http2.refill()

    def _write_raw(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def format_peer(address: object) -> str:
    """Return a socket's address as grpc does: `ipv4:127.0.0.1:80`, `ipv6:%5B::1%5D:80`, `unix:`."""
    match address:
        case (str(host), int(port)):
            return f"ipv4:{host}:{port}"
        case (str(host), int(port), int(), int()):
            return f"ipv6:%5B{host}%5D:{port}"
        case str(path):
            return f"unix:{path}"
        case _:
            return "unknown:"
