"""gRPC's reflection of a role, which lets grpcurl and others list and describe its services.

grpcio-reflection's servicer imports the descriptors of descriptors: 4 MiB of memory and 40 ms of processor time. Few roles
are ever asked, so it is imported at the first call, on a thread: calls under way go on meanwhile, and only the caller waits.
Threading: event loop, but for that import.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import grpc
    from grpc_reflection.v1alpha.reflection import aio

SERVICE_NAME: Final = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name


class ReflectionServicer(reflection_pb2_grpc.ServerReflectionServicer):
    """Reflection that lists `service_names` (full names) and describes what is loaded."""

    def __init__(self, service_names: Sequence[str]) -> None:
        self._service_names = service_names
        self._servicer: aio.ReflectionServicer | None = None

    async def ServerReflectionInfo(
        self,
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        context: grpc.aio.ServicerContext[
            reflection_pb2.ServerReflectionRequest, reflection_pb2.ServerReflectionResponse
        ],
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        if self._servicer is None:
            self._servicer = await asyncio.to_thread(self._load)
        answers: AsyncIterator[reflection_pb2.ServerReflectionResponse]
        answers = self._servicer.ServerReflectionInfo(requests, context)  # type: ignore[assignment]  # it is a generator
        async for answer in answers:
            yield answer

    def _load(self) -> aio.ReflectionServicer:
        from grpc_reflection.v1alpha.reflection import aio

        return aio.ReflectionServicer(self._service_names)
