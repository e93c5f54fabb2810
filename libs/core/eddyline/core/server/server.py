"""The gRPC server as every role runs it: errors, access, health, reflection, channelz, bounds.

Owns the server's options, which fit `eddyline.core.transport.channel`'s, the order of what a call passes through (errors,
access, the gate between clusters, the role's own), and raw methods: handlers that take or give
bytes as they are, so that one encoding serves many subscribers, and rows of a request are packed without objects.
Order: register generated servicers on `grpc`, then raw methods, then `start`, which binds, registers health,
reflection and channelz, and serves. Until the role says `health.set_ready(True)` it is NOT_SERVING.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from eddyline.core.auth.role import RoleAccess
from eddyline.core.records.record import MESSAGE_BYTES_MAX
from eddyline.core.runtime.settings import SettingsError
from eddyline.core.server.error_interceptor import ErrorInterceptor, random_id
from eddyline.core.server.health import HealthBoard
from eddyline.core.server.method_table import TableServer
from eddyline.core.transport.channel import FRAME_BYTES, KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS
from eddyline.core.transport.cluster_check import ClusterIdInterceptor
from eddyline.core.transport.handlers import make_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CALLS_MAX: Final = 16_384
"""Elsewhere unbounded: a client that forgets its streams takes the process down. 10 000 watch streams and what else
runs beside them; an idle stream costs 23 KiB. Above it calls are RESOURCE_EXHAUSTED at once."""
HANDSHAKE_MS_MAX: Final = 20_000
"""Elsewhere two minutes: whoever has connected and says nothing keeps a descriptor so long, without any key. A client that
is 20 s late with its first frame is not coming."""
PING_INTERVAL_MS_MIN: Final = 5_000
"""Elsewhere 5 minutes: clients that ping each 10 to 30 s, as ours and most others do, are sent away. Half of the shortest
of these, so that a late ping close to the next is no offence. Costs 40 bytes a connection each 5 s at worst."""
CONNECTION_GRACE: Final = 2
"""How long the streams of a connection that has reached its age may go on, in ages: each ends by its own age before that."""

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
    # Elsewhere 1 000 that wait to be taken up, and from there on calls are cancelled by chance: a thousand subscribers
    # that come back at one moment would meet it. What is too much is refused by its number, with a reason.
    ("grpc.server.max_pending_requests", CALLS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", CALLS_MAX),
    # Elsewhere on: two processes could bind one port, and each would get some of the calls.
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True)
class RawMethod:
    """One method that is not served as generated: `answer` is what a generated servicer would have, but takes what
    `parse_request` gives, and gives bytes or what `serialize_answer` makes bytes of.
    """

    answer: Callable[..., object]
    parse_request: Callable[[bytes], object]
    serialize_answer: Callable[..., bytes] | None = None
    request_stream: bool = False
    response_stream: bool = False


class RoleServer:
    """One server of one role. `grpc` takes the generated servicers; `health` is what the role says of itself."""

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
        # Held for as long as the server: gRPC asks it at each handshake.
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
        """Serve methods of `service` (full name) by other handlers in place of the generated ones.

        Call it after the generated servicer was added: what is registered later wins.
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
        """Bind and serve; `service_names` (full names) are what reflection lists. Gives the address, with its port.

        Raises:
            SettingsError: the address is taken or not ours.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self.grpc)
        channelz.add_channelz_servicer(self.grpc)
        listed = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, self.grpc)
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
        """Say NOT_SERVING, refuse new calls, wait `grace_s` for those that run, cancel the rest."""
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

    `cluster_id` = refuse roles of other clusters; "" = take every caller. `interceptors` = the role's own, innermost last.
    `connection_age_ms_max` = a connection that has become so old (a tenth more or less) takes no new calls, so that its
    client opens another, wherever the name leads then; 0 = never. `connections_max` = one more is closed as it comes, so
    that callers leave the role the descriptors that it needs itself (`open_files.py`). `access` None = everybody, on
    loopback alone.

    Raises:
        SettingsError: the host is not loopback, and nobody need say who he is.
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
