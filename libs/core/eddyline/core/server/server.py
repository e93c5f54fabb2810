"""The gRPC server of every role: errors, access, health, reflection, on the wire that its settings name.

Owns the choice of the wire (`wire.py`); the order of interceptors (errors, access, cluster id, the role's own); and raw
methods: handlers that read or write bytes as they are, so that one encoding serves many subscribers, and rows of a request
are parsed without objects.
Order: register generated servicers on `grpc`, then raw methods, then `start`, which binds, registers health and reflection,
and serves. The server is NOT_SERVING until the role calls `health.set_ready(True)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from eddyline.core.auth.role import RoleAccess
from eddyline.core.runtime.settings import WIRES, SettingsError
from eddyline.core.server.error_interceptor import ErrorInterceptor, random_id
from eddyline.core.server.health import HealthBoard
from eddyline.core.server.quick_calls import QuickCalls
from eddyline.core.server.reflection import SERVICE_NAME, ReflectionServicer
from eddyline.core.server.wire import CALLS_MAX, WireOptions
from eddyline.core.transport.cluster_check import ClusterIdInterceptor
from eddyline.core.transport.handlers import make_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import grpc

    from eddyline.core.server.quick_calls import QuickMethod
    from eddyline.core.server.wire import Backlog, Wire
    from eddyline.core.telemetry.server_metrics import ServerCounts


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
        wire: str = "grpc",
    ) -> None:
        self._access = access if access is not None else RoleAccess()
        self._access.check_listen(listen)
        self._listen = listen
        gates = (ClusterIdInterceptor(cluster_id),) if cluster_id else ()
        inner = (*gates, *interceptors)
        self._wire = _open_wire(
            wire,
            WireOptions(
                access=self._access,
                interceptors=(ErrorInterceptor(new_id=new_id), self._access.interceptor, *inner),
                connection_age_ms_max=connection_age_ms_max,
                connections_max=connections_max,
                quick_calls=QuickCalls(self._access.interceptor, inner, new_id=new_id),
            ),
        )
        self.grpc = self._wire.server
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

    def add_quick_methods(self, service: str, methods: Mapping[str, QuickMethod]) -> None:
        """Answer calls of methods of `service` (full name) without a task where the wire can, and they need not wait."""
        self._wire.add_quick_methods(service, methods)

    async def start(self, *service_names: str) -> str:
        """Bind and serve, and return the address with its port; reflection lists `service_names` (full names).

        Raises:
            SettingsError: the address is in use, or not one of this host.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self.grpc)
        listed = (*service_names, health.SERVICE_NAME, SERVICE_NAME)
        add_reflection = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
        add_reflection(ReflectionServicer(listed), self.grpc)  # type: ignore[no-untyped-call]
        try:
            port = self._wire.bind(self._listen)
        except RuntimeError as error:
            raise SettingsError(f"cannot listen on {self._listen}: in use, or not an address of this host") from error
        self.address = f"{self._listen.rpartition(':')[0]}:{port}"
        await self.health.start()
        await self.grpc.start()
        return self.address

    def counts(self) -> ServerCounts:
        """Return the counts of connections and calls so far; all 0 with gRPC's own core."""
        return self._wire.counts()

    def backlog(self, context: object) -> Backlog | None:
        """Return what the client of a call has not taken; None = gRPC's own core does not show it.

        `context` = the context that the call's handler got.
        """
        return self._wire.backlog(context)

    def fan_call(self, context: object) -> object | None:
        """Return the call of a handler's context, for `send_to_all`; None = gRPC's own core has no such way."""
        return self._wire.fan_call(context)

    def send_to_all(self, calls: Sequence[object], message: bytes) -> Sequence[object]:
        """Send a message to many calls of `fan_call` at once, and return those to which nothing was sent."""
        return self._wire.send_to_all(calls, message)

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
    wire: str = "grpc",
) -> RoleServer:
    """Make a server for `host:port` (port 0 = a free one). Needs a running loop; binds at `start`.

    `cluster_id` = refuse roles of other clusters; "" = accept every caller. `interceptors` = the role's own, innermost last.
    `connection_age_ms_max` = a connection of this age (plus or minus a tenth) takes no new calls, so that its client opens
    another, to the address that the name has then; 0 = never. `connections_max` = further connections are closed at once,
    so that the role keeps the descriptors that it needs itself (`open_files.py`). `access` None = every caller, on loopback
    only. `wire` = one of `eddyline.core.runtime.settings.WIRES`.

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
        wire=wire,
    )


def _open_wire(name: str, options: WireOptions) -> Wire:
    assert name in WIRES, name
    if name == "own":
        from eddyline.core.server.wire_own import OwnWire

        return OwnWire(options)
    from eddyline.core.server.wire_grpc import GrpcWire

    return GrpcWire(options)
