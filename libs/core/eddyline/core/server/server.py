"""The gRPC server of every role: errors, access, health, reflection, channelz, bounds.

Owns the server's options, which fit those of `eddyline.core.transport.channel`; the order of interceptors (errors, access,
cluster id, the role's own); and raw methods: handlers that read or write bytes as they are, so that one encoding serves many
subscribers, and rows of a request are parsed without objects.
Order: register generated servicers on `grpc`, then raw methods, then `start`, which binds, registers health, reflection and
channelz, and serves. The server is NOT_SERVING until the role calls `health.set_ready(True)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from eddyline.core.auth.role import RoleAccess
from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.runtime.settings import SettingsError
from eddyline.core.server.error_interceptor import ErrorInterceptor, random_id
from eddyline.core.server.health import HealthBoard
from eddyline.core.server.method_table import TableServer
from eddyline.core.server.reflection import SERVICE_NAME, ReflectionServicer
from eddyline.core.transport.channel import FRAME_BYTES, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from eddyline.core.transport.cluster_check import ClusterIdInterceptor
from eddyline.core.transport.handlers import make_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CALLS_MAX: Final = 16_384
"""gRPC: unbounded, so a client that leaks streams takes the process down. 10 000 watch streams and other calls; an idle
stream costs 23 KiB. Calls above it are RESOURCE_EXHAUSTED at once."""
HANDSHAKE_MS_MAX: Final = 20_000
"""gRPC: two minutes, during which a connection without a key or a frame keeps a descriptor. A client that is 20 s late with
its first frame will not send it."""
PING_INTERVAL_MS_MIN: Final = 5_000
"""gRPC: 5 minutes, so clients that ping each 10 to 30 s, as ours and most others do, are disconnected. Half of the shortest
of these intervals, so that a late ping close to the next is accepted. Costs 40 bytes a connection each 5 s at worst."""
CONNECTION_GRACE: Final = 2
"""Time in which streams of a connection above its maximum age may continue, in ages: each ends by its own age before."""

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


@dataclass(frozen=True, slots=True)
class RawMethod:
    """A method with its own parser or serializer instead of the generated ones.

    `answer` is a handler as in a generated servicer, but gets the result of `parse_request`, and returns bytes or a value
    for `serialize_answer`.
    """

    answer: Callable[..., object]
    parse_request: Callable[[bytes], object]
    serialize_answer: Callable[..., bytes] | None = None
    request_stream: bool = False
    response_stream: bool = False


class RoleServer:
    """Server of one role. Generated servicers are added to `grpc`; `health` is the role's state."""

    def __init__(
        self,
        listen: str,
        *,
        new_id: Callable[[], str] = random_id,
        cluster_id: str = "",
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        connection_age_ms_max: int = 0,
        connections_max: int = CALLS_MAX,
        access: RoleAccess | None = None,
    ) -> None:
        self._access = access if access is not None else RoleAccess()
        self._access.check_listen(listen)
        self._listen = listen
        # Kept as long as the server: gRPC calls it in each handshake.
        self._credentials = self._access.credentials
        gates = (ClusterIdInterceptor(cluster_id),) if cluster_id else ()
        self.grpc = TableServer(
            grpc.aio.server(
                interceptors=(ErrorInterceptor(new_id=new_id), self._access.interceptor, *gates, *interceptors),
                options=(
                    *SERVER_OPTIONS,
                    *_age_options(connection_age_ms_max),
                    ("grpc.max_allowed_incoming_connections", connections_max),
                ),
                maximum_concurrent_rpcs=CALLS_MAX,
            )
        )
        self.health = HealthBoard()
        self.address = ""

    def add_raw_methods(self, service: str, methods: Mapping[str, RawMethod]) -> None:
        """Replace the generated handlers of methods of `service` (full name).

        Call it after the generated servicer was added: the later registration wins.
        """
        handlers = {
            name: make_handler(
                method.answer,
                method.parse_request,
                method.serialize_answer,
                request_streaming=method.request_stream,
                response_streaming=method.response_stream,
            )
            for name, method in methods.items()
        }
        self.grpc.add_registered_method_handlers(service, handlers)

    async def start(self, *service_names: str) -> str:
        """Bind and serve, and return the address with its port; reflection lists `service_names` (full names).

        Raises:
            SettingsError: the address is in use, or not one of this host.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self.grpc)
        channelz.add_channelz_servicer(self.grpc)
        listed = (*service_names, health.SERVICE_NAME, SERVICE_NAME)
        add_reflection = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
        add_reflection(ReflectionServicer(listed), self.grpc)  # type: ignore[no-untyped-call]
        try:
            if self._credentials is None:
                port = self.grpc.add_insecure_port(self._listen)
            else:
                port = self.grpc.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise SettingsError(f"cannot listen on {self._listen}: in use, or not an address of this host") from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self.health.start()
        await self.grpc.start()
        return self.address

    async def stop(self, grace_s: float) -> None:
        """Set NOT_SERVING, refuse new calls, wait `grace_s` for calls in flight, cancel the rest."""
        await self.health.stop()
        await self.grpc.stop(grace_s)


def make_server(
    listen: str,
    *,
    new_id: Callable[[], str] = random_id,
    cluster_id: str = "",
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    connection_age_ms_max: int = 0,
    connections_max: int = CALLS_MAX,
    access: RoleAccess | None = None,
) -> RoleServer:
    """Make a server for `host:port` (port 0 = a free one). Needs a running loop; binds at `start`.

    `cluster_id` = refuse roles of other clusters; "" = accept every caller. `interceptors` = the role's own, innermost last.
    `connection_age_ms_max` = a connection of this age (plus or minus a tenth) takes no new calls, so that its client opens
    another, to the address that the name has then; 0 = never. `connections_max` = further connections are closed at once,
    so that the role keeps the descriptors that it needs itself (`open_files.py`). `access` None = every caller, on loopback
    only.

    Raises:
        SettingsError: the host is not loopback, and there is no access control.
    """
    return RoleServer(
        listen,
        new_id=new_id,
        cluster_id=cluster_id,
        interceptors=interceptors,
        connection_age_ms_max=connection_age_ms_max,
        connections_max=connections_max,
        access=access,
    )


def _age_options(age_ms_max: int) -> tuple[tuple[str, int], ...]:
    if not age_ms_max:
        return ()
    return (
        ("grpc.max_connection_age_ms", age_ms_max),
        ("grpc.max_connection_age_grace_ms", age_ms_max * CONNECTION_GRACE),
    )
