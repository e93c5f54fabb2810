"""A role's server on `eddyline.wire`, which makes and reads the frames of HTTP/2 itself.

Its limits are those of the options of `wire_grpc.py` wherever both have one, so a role behaves alike on both. It has counts
of its own in place of channelz, and shows what a client's window has not taken.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.server.wire import CALLS_MAX, CONNECTION_GRACE, HANDSHAKE_MS_MAX, Backlog
from eddyline.core.telemetry.server_metrics import ServerCounts
from eddyline.core.transport.channel import FRAME_BYTES, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS, WINDOW_BYTES
from eddyline.wire.calls.call import send_to_all
from eddyline.wire.calls.context import WireContext
from eddyline.wire.calls.server import Server
from eddyline.wire.http2.limits import Limits
from eddyline.wire.transport.timeouts import Timeouts
from eddyline.wire.transport.tls import prepare_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from eddyline.core.server.quick_calls import QuickMethod
    from eddyline.core.server.wire import WireOptions
    from eddyline.wire.calls.call import Call

FLOOD: Final = "ENHANCE_YOUR_CALM"
"""The code of a connection that was cut for its control frames (RFC 9113, 7)."""
ASSEMBLING_MESSAGES: Final = 4
"""Messages of the largest size that one connection may have under way at a time; more are RESOURCE_EXHAUSTED. gRPC:
unbounded. 256 MiB, as 64 batches of the usual 4 MiB."""

LIMITS: Final = Limits(
    # A client may hold all of its watches on one connection, as gRPC lets it; the bound is the server's, of all together.
    streams_max=CALLS_MAX,
    stream_window_bytes=WINDOW_BYTES,
    message_bytes_max=MESSAGE_BYTES_MAX,
    sent_message_bytes_max=MESSAGE_BYTES_MAX,
    assembling_bytes_max=ASSEMBLING_MESSAGES * MESSAGE_BYTES_MAX,
    frame_bytes_max=FRAME_BYTES,
    sent_frame_bytes_max=FRAME_BYTES,
)


class OwnWire:
    """A `Wire`."""

    def __init__(self, options: WireOptions) -> None:
        age_s = options.connection_age_ms_max / 1000
        self._access = options.access
        self._quick_calls = options.quick_calls
        self._prepared: ssl.SSLContext | None = None
        self.server: Server = Server(
            interceptors=options.interceptors,
            maximum_concurrent_rpcs=CALLS_MAX,
            limits=LIMITS,
            timeouts=Timeouts(
                handshake_s=HANDSHAKE_MS_MAX / 1000,
                keepalive_s=KEEPALIVE_MS / 1000,
                keepalive_timeout_s=KEEPALIVE_TIMEOUT_MS / 1000,
                age_s=age_s,
                age_grace_s=age_s * CONNECTION_GRACE,
            ),
            connections_max=options.connections_max,
        )

    def bind(self, listen: str) -> int:
        if self._access.grpc_context() is None:
            return self.server.add_insecure_port(listen)
        return self.server.add_tls_port(listen, self._context)

    def add_quick_methods(self, service: str, methods: Mapping[str, QuickMethod]) -> None:
        handler = self._quick_calls.handler
        self.server.add_quick_handlers(service, {name: handler(method) for name, method in methods.items()})

    def counts(self) -> ServerCounts:
        counters = self.server.counters
        floods = counters.connections_failed[FLOOD]
        return ServerCounts(
            connections=counters.connections,
            opened_connections=counters.connections_total,
            calls=self.server.calls_open,
            opened_calls=counters.streams_total,
            refused=counters.connections_refused,
            handshakes=counters.handshakes_failed,
            keepalives=counters.keepalive_timeouts,
            floods=floods,
            violations=counters.connections_failed.total() - floods,
        )

    def backlog(self, context: object) -> Backlog | None:
        if not isinstance(context, WireContext):
            return None
        stream = context.call.backlog()
        return Backlog(stream.queued_bytes, stream.queued_age_s, stream.uncredited_bytes, stream.uncredited_age_s)

    def fan_call(self, context: object) -> Call | None:
        return context.call if isinstance(context, WireContext) else None

    def send_to_all(self, calls: Sequence[Call], message: bytes) -> Sequence[object]:
        return send_to_all(calls, message)

    def _context(self) -> ssl.SSLContext:
        """Return the context for a new connection: of the certificate that was loaded last."""
        context = self._access.grpc_context()
        assert context is not None, "certificates are replaced, never taken away"
        if context is not self._prepared:
            self._prepared = prepare_context(context)
        return context
