"""ApplyService: writes of roles to a store, and follows of its topics. Translates, validates, delegates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eddyline.core.codec import records as wire
from eddyline.core.codec import state as wire_state
from eddyline.core.errors import InvalidArgument, MalformedColumns, StreamOrder
from eddyline.core.model.paging import name_after, page_limit, token_after
from eddyline.core.model.source import TEXT_BYTES_MAX, WARNINGS_MAX, SourceChange, SourceReport
from eddyline.core.model.topic import check_name
from eddyline.core.records.record import POSITION_BYTES_MAX
from eddyline.core.telemetry.trace_context import traceparent_of
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.store.rpc.follow_call import FollowCall
from eddyline.store.rpc.stream_context import open_stream
from eddyline.v1 import apply_pb2, apply_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.records.batch import Batch
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.core.telemetry.trace_context import CalledContext
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import StreamContext
    from eddyline.store.shard.api import ShardApi

    _ApplyRequest = apply_pb2.ApplyBatchRequest | apply_pb2.ApplyStreamRequest

STATE_BYTES_MAX: Final = 64
_LIST: Final = "ApplyService.ListSources"


class ApplyServicer(apply_pb2_grpc.ApplyServiceServicer):
    """ApplyService on the shard of a handle."""

    def __init__(self, handle: ShardHandle, tracer: Tracer = NOOP_TRACER) -> None:
        self._handle = handle
        self._tracer = tracer

    async def ApplyBatch(
        self, request: apply_pb2.ApplyBatchRequest, context: CalledContext
    ) -> apply_pb2.ApplyBatchResponse:
        result = await self._apply(request, traceparent_of(context) if self._tracer.is_on else "")
        return apply_pb2.ApplyBatchResponse(
            first_seq=result.first_seq,
            last_seq=result.last_seq,
            deduplicated=result.deduplicated,
            epoch=result.epoch,
            ts_ms=result.ts_ms,
        )

    async def ApplyStream(  # type: ignore[override]  # gRPC takes coroutines that write, its types only generators
        self,
        request_iterator: AsyncIterator[apply_pb2.ApplyStreamRequest],
        context: StreamContext[apply_pb2.ApplyStreamResponse],
    ) -> None:
        self._handle.get()
        await open_stream(context)
        await self._handle.cancel_on_shed(self._apply_steps(request_iterator, context))

    async def _apply_steps(
        self,
        steps: AsyncIterator[apply_pb2.ApplyStreamRequest],
        context: StreamContext[apply_pb2.ApplyStreamResponse],
    ) -> None:
        source = ""
        async for step in steps:
            if source and step.source != source:
                raise StreamOrder(f"the stream applies batches of source {source} alone", field="source")
            source = step.source
            result = await self._apply(step, step.traceparent if self._tracer.is_on else "")
            await context.write(
                apply_pb2.ApplyStreamResponse(
                    first_seq=result.first_seq,
                    last_seq=result.last_seq,
                    deduplicated=result.deduplicated,
                    epoch=result.epoch,
                    ts_ms=result.ts_ms,
                )
            )

    async def _apply(self, request: _ApplyRequest, traceparent: str) -> AppendResult:
        shard = self._handle.get()
        _check_fence(request.fence)
        _check_position(request.previous, "previous")
        _check_position(request.new, "new", bytes_min=1)
        return await shard.apply_batch(
            request.source,
            fence=request.fence,
            previous=request.previous,
            new=request.new,
            batch=_batch(shard, request),
            traceparent=traceparent,
        )

    async def PutSource(self, request: apply_pb2.PutSourceRequest, context: object) -> apply_pb2.PutSourceResponse:
        shard = self._handle.get()
        if not request.HasField("definition"):
            raise InvalidArgument("the source's definition is missing", field="definition")
        source, created = await shard.put_source(wire_state.source_definition_from_pb(request.definition))
        return apply_pb2.PutSourceResponse(source=wire_state.source_info_to_pb(source), created=created)

    async def GetSource(
        self, request: apply_pb2.ApplyServiceGetSourceRequest, context: object
    ) -> apply_pb2.ApplyServiceGetSourceResponse:
        source = await self._handle.get().get_source(request.source)
        return apply_pb2.ApplyServiceGetSourceResponse(source=wire_state.source_info_to_pb(source))

    async def ListSources(
        self, request: apply_pb2.ApplyServiceListSourcesRequest, context: object
    ) -> apply_pb2.ApplyServiceListSourcesResponse:
        shard = self._handle.get()
        limit = page_limit(request.page_size)
        # One record more than the page shows whether there is another page, so the last page is never empty.
        sources = await shard.list_sources_page(name_after(request.page_token, call=_LIST), limit + 1)
        page = sources[:limit]
        return apply_pb2.ApplyServiceListSourcesResponse(
            sources=[wire_state.source_info_to_pb(source) for source in page],
            next_page_token=token_after(page[-1].definition.name, call=_LIST) if len(sources) > limit else "",
        )

    async def ControlSource(
        self, request: apply_pb2.ControlSourceRequest, context: object
    ) -> apply_pb2.ControlSourceResponse:
        shard = self._handle.get()
        paused = request.paused if request.HasField("paused") else None
        if paused is None and not request.resync:
            raise InvalidArgument("a control request needs paused or resync", field="paused")
        source = await shard.control_source(request.source, paused=paused, resync=request.resync)
        return apply_pb2.ControlSourceResponse(source=wire_state.source_info_to_pb(source))

    async def UpdateSource(
        self, request: apply_pb2.ApplyServiceUpdateSourceRequest, context: object
    ) -> apply_pb2.ApplyServiceUpdateSourceResponse:
        shard = self._handle.get()
        change = SourceChange(
            wire_state.policy_from_pb(request.on_expired, "on_expired"),
            wire_state.policy_from_pb(request.on_recreated, "on_recreated"),
            request.dead_letter_topic if request.HasField("dead_letter_topic") else None,
        )
        source = await shard.update_source(request.source, change)
        return apply_pb2.ApplyServiceUpdateSourceResponse(source=wire_state.source_info_to_pb(source))

    async def DeleteSource(
        self, request: apply_pb2.ApplyServiceDeleteSourceRequest, context: object
    ) -> apply_pb2.ApplyServiceDeleteSourceResponse:
        await self._handle.get().delete_source(request.source)
        return apply_pb2.ApplyServiceDeleteSourceResponse()

    async def AcquireLease(
        self, request: apply_pb2.AcquireLeaseRequest, context: object
    ) -> apply_pb2.AcquireLeaseResponse:
        shard = self._handle.get()
        lease = await shard.acquire_lease(request.source, holder=request.holder, lease_ms=request.lease_ms)
        return apply_pb2.AcquireLeaseResponse(fence=lease.fence, source=wire_state.source_info_to_pb(lease.source))

    async def RenewLease(self, request: apply_pb2.RenewLeaseRequest, context: object) -> apply_pb2.RenewLeaseResponse:
        shard = self._handle.get()
        _check_fence(request.fence)
        _check_text(request.state, "state", STATE_BYTES_MAX)
        _check_text(request.state_reason, "state_reason", TEXT_BYTES_MAX)
        _check_detail(request.detail)
        report = SourceReport(
            state=request.state,
            reason=request.state_reason,
            last_revision=request.source_last_revision,
            lag=request.lag,
            detail=wire_state.source_detail_from_pb(request.detail) if request.HasField("detail") else None,
        )
        renewal = await shard.renew_lease(request.source, fence=request.fence, report=report)
        changeable = renewal.changeable
        return apply_pb2.RenewLeaseResponse(
            lease_remaining_ms=renewal.remaining_ms,
            on_expired=wire_state.policy_to_pb(changeable.on_expired),
            on_recreated=wire_state.policy_to_pb(changeable.on_recreated),
            dead_letter_topic=changeable.dead_letter_topic or "",
            **renewal.control._asdict(),
        )

    async def ReleaseLease(
        self, request: apply_pb2.ReleaseLeaseRequest, context: object
    ) -> apply_pb2.ReleaseLeaseResponse:
        shard = self._handle.get()
        _check_fence(request.fence)
        await shard.release_lease(request.source, fence=request.fence)
        return apply_pb2.ReleaseLeaseResponse()

    async def FollowTopics(  # type: ignore[override]  # gRPC takes coroutines that write, its types only generators
        self,
        request_iterator: AsyncIterator[apply_pb2.FollowTopicsRequest],
        context: StreamContext[apply_pb2.FollowTopicsResponse],
    ) -> None:
        await FollowCall(self._handle, steps=request_iterator, context=context).run()


def _batch(shard: ShardApi, request: _ApplyRequest) -> Batch | None:
    """Return the batch to apply; None = only the position moves."""
    if not request.batch.count:
        check_name(request.source, "source")
        if request.batch.ByteSize():
            raise MalformedColumns("a batch of count 0 has columns", field="batch.count")
        return None
    kind = shard.source_kind(request.source)
    return wire.batch_from_columns(request.batch, source=True, default_op=wire.default_op(kind))


def _check_fence(fence: int) -> None:
    if fence == 0:
        raise InvalidArgument("the fence of the caller's lease is missing", field="fence")


def _check_position(position: bytes, field: str, *, bytes_min: int = 0) -> None:
    if not bytes_min <= len(position) <= POSITION_BYTES_MAX:
        raise InvalidArgument(
            f"a position must have {bytes_min} to {POSITION_BYTES_MAX} bytes, `{field}` has {len(position)}",
            field=field,
            positionBytes=len(position),
            positionBytesMin=bytes_min,
            positionBytesMax=POSITION_BYTES_MAX,
        )


def _check_detail(detail: apply_pb2.SourceDetail) -> None:
    if len(detail.warnings) > WARNINGS_MAX:
        raise InvalidArgument(
            f"a report has at most {WARNINGS_MAX} warnings", field="detail.warnings", warningsMax=WARNINGS_MAX
        )
    for field, text in (("decision", detail.decision), ("file_drift", detail.file_drift)):
        _check_text(text, f"detail.{field}", TEXT_BYTES_MAX)
    for warning in detail.warnings:
        _check_text(warning, "detail.warnings", TEXT_BYTES_MAX)


def _check_text(text: str, field: str, bytes_max: int) -> None:
    if len(text.encode()) > bytes_max:
        raise InvalidArgument(f"{field} has at most {bytes_max} bytes", field=field, bytesMax=bytes_max)
