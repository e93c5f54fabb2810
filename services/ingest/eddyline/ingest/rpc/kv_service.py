"""KvService: writes into the buckets. Translates and delegates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from eddyline.core.server.deadline import CallContext, wait_timeout_s
from eddyline.core.telemetry.trace_context import parse_traceparent, traceparent_of
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.core.transport.metadata import WRITTEN_REVISION
from eddyline.ingest.kv.writer import WriteTarget
from eddyline.v1 import kv_pb2, kv_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.ingest.kv.writer import KvWriter, WrittenEntry

    Request = (
        kv_pb2.PutEntryRequest
        | kv_pb2.CreateEntryRequest
        | kv_pb2.UpdateEntryRequest
        | kv_pb2.DeleteEntryRequest
        | kv_pb2.PurgeEntryRequest
    )

SERVICE: Final = "eddyline.v1.KvService"
CALL_S_MAX: Final = 30.0
"""The contract's bound where the caller sets no deadline, or a later one."""


class KvServicer(kv_pb2_grpc.KvServiceServicer):
    """Any replica writes into any bucket."""

    def __init__(self, writer: KvWriter, tracer: Tracer = NOOP_TRACER) -> None:
        self._writer = writer
        self._is_tracing = tracer.is_on

    async def PutEntry(self, request: kv_pb2.PutEntryRequest, context: KvCallContext) -> kv_pb2.PutEntryResponse:
        written = await self._writer.put(self._target(request, context), request.value)
        return kv_pb2.PutEntryResponse(written=_written_to_pb(written))

    async def CreateEntry(
        self, request: kv_pb2.CreateEntryRequest, context: KvCallContext
    ) -> kv_pb2.CreateEntryResponse:
        written = await self._writer.create(self._target(request, context), request.value, ttl_ms=request.ttl_ms)
        return kv_pb2.CreateEntryResponse(written=_written_to_pb(written))

    async def UpdateEntry(
        self, request: kv_pb2.UpdateEntryRequest, context: KvCallContext
    ) -> kv_pb2.UpdateEntryResponse:
        target = self._target(request, context)
        written = await self._writer.update(target, request.value, expected_revision=request.expected_revision)
        return kv_pb2.UpdateEntryResponse(written=_written_to_pb(written))

    async def DeleteEntry(
        self, request: kv_pb2.DeleteEntryRequest, context: KvCallContext
    ) -> kv_pb2.DeleteEntryResponse:
        target = self._target(request, context)
        written = await self._writer.delete(target, expected_revision=request.expected_revision)
        return kv_pb2.DeleteEntryResponse(written=_written_to_pb(written))

    async def PurgeEntry(self, request: kv_pb2.PurgeEntryRequest, context: KvCallContext) -> kv_pb2.PurgeEntryResponse:
        written = await self._writer.purge(
            self._target(request, context), expected_revision=request.expected_revision, ttl_ms=request.ttl_ms
        )
        return kv_pb2.PurgeEntryResponse(written=_written_to_pb(written))

    def _target(self, request: Request, context: KvCallContext) -> WriteTarget:
        async def send_revision(revision: int) -> None:
            await context.send_initial_metadata(((WRITTEN_REVISION, str(revision)),))

        trace_context = parse_traceparent(traceparent_of(context)) if self._is_tracing else None
        return WriteTarget(
            bucket=request.bucket,
            key=request.key,
            timeout_s=wait_timeout_s(context, CALL_S_MAX),
            wait=request.wait.wait_applied,
            source=request.wait.source,
            on_written=send_revision,
            traceparent=trace_context.header() if trace_context is not None else "",
        )


class KvCallContext(CallContext, Protocol):
    """Context of a call that sends metadata before its answer."""

    async def send_initial_metadata(self, initial_metadata: Sequence[tuple[str, str]]) -> None:
        """Send metadata now; once a call."""


def _written_to_pb(written: WrittenEntry) -> kv_pb2.EntryWritten:
    return kv_pb2.EntryWritten(
        revision=written.revision,
        stream_identity=written.stream_identity,
        version=written.revision.to_bytes(8, "big"),
        applied_sources=written.applied,
    )
