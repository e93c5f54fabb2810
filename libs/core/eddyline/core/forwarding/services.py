"""Services of the stores as ingest and delivery serve them: some of their calls, forwarded to the owning shard.

`eddyline.core.forwarding.interceptor` answers the accepted calls before they reach the handlers that are registered
here; the rest of such a service fails with UNIMPLEMENTED (`SERVED_ELSEWHERE`), whose message names the right role.
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
"""Parsers of the stores, whose result access control reads."""


def add_forwarded(server: RoleServer, methods: Collection[str], *, role: str) -> tuple[str, ...]:
    """Serve the services of `methods` (full names) as `role`; return their names.

    The server needs an interceptor for `methods`.
    """
    names = tuple(name for name in _SERVICES if any(method.startswith(f"/{name}/") for method in methods))
    for name in names:
        raw_methods: dict[str, RawMethod] = {}
        for method in _SERVICES[name].methods:
            parse = _WITH_ROWS.get(method.name) if name == LOG_SERVICE else None
            raw_methods[method.name] = RawMethod(
                _refusing(name, method.name, role),
                parse or message_factory.GetMessageClass(method.input_type).FromString,
                message_factory.GetMessageClass(method.output_type).SerializeToString,
                request_stream=method.client_streaming,
                response_stream=method.server_streaming,
            )
        server.add_raw_methods(name, raw_methods)
    return names


def add_refused_calls(
    server: RoleServer, service: ServiceDescriptor, served: Collection[str], *, role: str, at: str
) -> None:
    """Refuse, as `role`, the calls of `service` that are not in `served` (plain names): only `at` serves them."""
    raw_methods: dict[str, RawMethod] = {}
    for method in service.methods:
        if method.name not in served:
            raw_methods[method.name] = RawMethod(
                _refusing(service.full_name, method.name, role, at),
                message_factory.GetMessageClass(method.input_type).FromString,
                message_factory.GetMessageClass(method.output_type).SerializeToString,
                request_stream=method.client_streaming,
                response_stream=method.server_streaming,
            )
    server.add_raw_methods(service.full_name, raw_methods)


def _refusing(service: str, call: str, role: str, at: str = "a store") -> Callable[[object, Any], Any]:
    async def refuse(_request: object, _context: object) -> NoReturn:
        raise ServedElsewhere(
            f"{role} does not serve {call} of {service}: call {at}; GetTopology returns the addresses",
            method=f"{service}/{call}",
        )

    return refuse
