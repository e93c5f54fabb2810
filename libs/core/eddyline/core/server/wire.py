"""What serves a role's calls, and the bounds that hold on either wire.

`EDDYLINE_COMMON_WIRE` chooses: `wire_grpc.py` is gRPC's own core, `wire_own.py` is `eddyline.wire`. Only the chosen one is
imported. Servicers, interceptors, contract and clients are the same on both.
Threading: event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import grpc

    from eddyline.core.auth.role import RoleAccess
    from eddyline.core.server.quick_calls import QuickCalls, QuickMethod
    from eddyline.core.telemetry.server_metrics import ServerCounts

CALLS_MAX: Final = 16_384
"""gRPC: unbounded, so a client that leaks streams takes the process down. 10 000 watch streams and other calls; an idle
stream costs 23 KiB (own wire: 1 KiB). Calls above it are RESOURCE_EXHAUSTED at once."""
HANDSHAKE_MS_MAX: Final = 20_000
"""gRPC: two minutes, during which a connection without a key or a frame keeps a descriptor. A client that is 20 s late with
its first frame will not send it."""
CONNECTION_GRACE: Final = 2
"""Time in which streams of a connection above its maximum age may continue, in ages: each ends by its own age before."""


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Options of a role's server. `connection_age_ms_max` 0 = connections of any age."""

    access: RoleAccess
    interceptors: Sequence[grpc.aio.ServerInterceptor]
    connection_age_ms_max: int
    connections_max: int
    quick_calls: QuickCalls


class Backlog(NamedTuple):
    """What the client of one stream has not taken, by HTTP/2's flow control. Ages are 0 where there are no bytes."""

    queued_bytes: int
    """Bytes that wait here, since the client's window or socket is full."""
    queued_s: float
    """Time for which the first of them has waited."""
    unread_bytes: int
    """Bytes sent for which the client has not given back its window: its program may not have read them. Clients do so
    in steps, so some KiB say nothing."""
    unread_s: float
    """Time for which the first of them has been out, at least."""


class Wire(Protocol):
    """A server of gRPC calls."""

    @property
    def server(self) -> grpc.aio.Server:
        """Return what takes registrations, `start` and `stop`."""

    def bind(self, listen: str) -> int:
        """Bind `host:port`, with the role's certificates if it has any, and return the port.

        Raises:
            RuntimeError: the address is in use, or not one of this host.
        """

    def add_quick_methods(self, service: str, methods: Mapping[str, QuickMethod]) -> None:
        """Answer calls of a service's methods without a task where that can be; their handlers answer the others.

        Nothing with gRPC's own core, which has no such way.
        """

    def counts(self) -> ServerCounts:
        """Return the counts of connections and calls so far; all 0 where they are not visible."""

    def backlog(self, context: object) -> Backlog | None:
        """Return what the client of a call has not taken; None = it is not visible. `context` = the one of its handler."""

    def fan_call(self, context: object) -> object | None:
        """Return the call of a handler's context, for `send_to_all`; None = this wire has no such way."""

    def send_to_all(self, calls: Sequence[Any], message: bytes) -> Sequence[object]:
        """Send a message to many calls of `fan_call` at once, and return those to which nothing was sent.

        A call takes it if nothing of it waits, and its client's windows and socket have room for all of it.
        """
