"""A role's server on gRPC's own core, by grpc.aio.

Owns the server's options, which fit those of `eddyline.core.transport.channel`, and channelz, which shows the core's
connections. The core shows neither counts of its own nor what a client's window has not taken.
Threading: event loop; the core has threads of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from grpc_channelz.v1 import channelz

from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.server.method_table import TableServer
from eddyline.core.server.wire import CALLS_MAX, CONNECTION_GRACE, HANDSHAKE_MS_MAX
from eddyline.core.telemetry.server_metrics import ServerCounts
from eddyline.core.transport.channel import FRAME_BYTES, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from eddyline.core.server.quick_calls import QuickMethod
    from eddyline.core.server.wire import WireOptions

PING_INTERVAL_MS_MIN: Final = 5_000
"""gRPC: 5 minutes, so clients that ping each 10 to 30 s, as ours and most others do, are disconnected. Half of the shortest
of these intervals, so that a late ping close to the next is accepted. Costs 40 bytes a connection each 5 s at worst."""

assert PING_INTERVAL_MS_MIN * 2 <= KEEPALIVE_MS

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
    ("grpc.http2.max_frame_size", FRAME_BYTES),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
    # gRPC: 1 000 pending calls, above which calls are cancelled at random: a thousand subscribers that reconnect at
    # once would hit it. Calls above the bound are refused with a reason.
    ("grpc.server.max_pending_requests", CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", CALLS_MAX),
    # gRPC: on, so two processes could bind one port, and each would get some of the calls.
    ("grpc.so_reuseport", 0),
)


class GrpcWire:
    """A `Wire`."""

    def __init__(self, options: WireOptions) -> None:
        # Kept as long as the server: gRPC calls it in each handshake.
        self._credentials = options.access.credentials
        self.server: grpc.aio.Server = TableServer(
            grpc.aio.server(
                interceptors=options.interceptors,
                options=(
                    *SERVER_OPTIONS,
                    *_age_options(options.connection_age_ms_max),
                    ("grpc.max_allowed_incoming_connections", options.connections_max),
                ),
                maximum_concurrent_rpcs=CALLS_MAX,
            )
        )
        channelz.add_channelz_servicer(self.server)

    def bind(self, listen: str) -> int:
        if self._credentials is None:
            return self.server.add_insecure_port(listen)
        return self.server.add_secure_port(listen, self._credentials)

    def add_quick_methods(self, _service: str, _methods: Mapping[str, QuickMethod]) -> None:
        pass

    def counts(self) -> ServerCounts:
        return ServerCounts()

    def backlog(self, _context: object) -> None:
        return None

    def fan_call(self, _context: object) -> None:
        return None

    def send_to_all(self, calls: Sequence[object], _message: bytes) -> Sequence[object]:
        return calls


def _age_options(age_ms_max: int) -> tuple[tuple[str, int], ...]:
    if not age_ms_max:
        return ()
    return (
        ("grpc.max_connection_age_ms", age_ms_max),
        ("grpc.max_connection_age_grace_ms", age_ms_max * CONNECTION_GRACE),
    )
