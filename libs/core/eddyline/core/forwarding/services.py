"""Services of the stores as ingest and delivery serve them: some of their calls, passed on to the owning shard.

The calls that a role takes are answered by `eddyline.core.forwarding.interceptor`, which stands before what is registered
here; the rest of such a service is UNIMPLEMENTED (`SERVED_ELSEWHERE`), and says where to go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from google.protobuf import message_factory

from eddyline.core.codec import row_split
from eddyline.core.errors import ServedElsewhere
from eddyline.core.forwarding.routes import APPEND_CALLS, LOG_SERVICE
from eddyline.core.server.server import RawMethod
from eddyline.v1 import fold_pb2, log_pb2, topic_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from google.protobuf.descriptor import ServiceDescriptor

    from eddyline.core.server.server import RoleServer

_SERVICES: Final = {
    service.full_name: service
    for file in (topic_pb2.DESCRIPTOR, log_pb2.DESCRIPTOR, fold_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
}
_WITH_ROWS: Final[dict[str, Callable[[bytes], object]]] = dict(
    zip(APPEND_CALLS, (row_split.append_records_request, row_split.append_stream_request), strict=True)
)
"""As stores parse them, which is what access looks into."""


def add_forwarded(server: RoleServer, methods: Collection[str], *, role: str) -> tuple[str, ...]:
    """Serve the services that `methods` (full names) are of, as `role`; their names. The server has a gate for `methods`."""
    names = tuple(name for name in _SERVICES if any(method.startswith(f"/{name}/") for method in methods))
    for name in names:
        found: dict[str, RawMethod] = {}
        for method in _SERVICES[name].methods:
            parse = _WITH_ROWS.get(method.name) if name == LOG_SERVICE else None
            found[method.name] = RawMethod(
                _refusing(name, method.name, role),
                parse or message_factory.GetMessageClass(method.input_type).FromString,
                message_factory.GetMessageClass(method.output_type).SerializeToString,
                request_stream=method.client_streaming,
                response_stream=method.server_streaming,
            )
        server.add_raw_methods(name, found)
    return names


def add_elsewhere(
    server: RoleServer, service: ServiceDescriptor, served: Collection[str], *, role: str, at: str
) -> None:
    """Refuse, as `role`, the calls of `service` that are not in `served` (plain names): they are served by `at` alone."""
    found: dict[str, RawMethod] = {}
    for method in service.methods:
        if method.name not in served:
            found[method.name] = RawMethod(
                _refusing(service.full_name, method.name, role, at),
                message_factory.GetMessageClass(method.input_type).FromString,
                message_factory.GetMessageClass(method.output_type).SerializeToString,
                request_stream=method.client_streaming,
                response_stream=method.server_streaming,
            )
    server.add_raw_methods(service.full_name, found)


def _refusing(service: str, call: str, role: str, at: str = "a store") -> Callable[[object, Any], Any]:
    async def refuse(_request: object, _context: object) -> NoReturn:
        raise ServedElsewhere(
            f"{call} of {service} is not served by {role}: ask {at}; GetTopology says where they are",
            method=f"{service}/{call}",
        )

    return refuse
