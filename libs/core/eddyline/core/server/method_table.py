"""A gRPC server that finds a call's handler in one table.

grpc.aio keeps a task for each method that generated code registers, and awaits all of them again for each call: a store
with 40 methods spent a tenth of a single append on that (`tests/bench/README.md`, P3). A generic handler, which gRPC
calls with the method's name, costs one look-up. All other methods delegate to the wrapped server.
Threading: event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Handler = grpc.RpcMethodHandler[Any, Any]


class MethodTable(grpc.GenericRpcHandler):
    """Handlers by full method name; a later registration of a name replaces the earlier."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, service_name: str, handlers: Mapping[str, Handler]) -> None:
        """Add the methods of `service_name`, a full name."""
        self._handlers.update((f"/{service_name}/{method}", handler) for method, handler in handlers.items())

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        return self._handlers.get(handler_call_details.method)


class TableServer(grpc.aio.Server):
    """A server with its registered methods in a table. Generic handlers get the calls that the table does not have."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server
        self._table = MethodTable()
        server.add_generic_rpc_handlers((self._table,))

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        self._table.add(service_name, method_handlers)

    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(tuple(generic_rpc_handlers))

    def add_insecure_port(self, address: str) -> int:
        return self._server.add_insecure_port(address)

    def add_secure_port(self, address: str, server_credentials: grpc.ServerCredentials) -> int:
        return self._server.add_secure_port(address, server_credentials)

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace: float | None) -> None:
        await self._server.stop(grace)

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        return await self._server.wait_for_termination(timeout)
