"""LogService: appends, reads, look-ups by time, deletes. Translates, validates, delegates."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from eddyline.core.codec import calls as wire_calls
from eddyline.core.codec import records as wire
from eddyline.core.codec import row_split as rows_apart
from eddyline.core.errors import InvalidArgument
from eddyline.core.model.deletion import check_delete
from eddyline.core.model.read import READ_WAIT_MS_MAX
from eddyline.core.server.deadline import wait_timeout_s
from eddyline.core.server.quick_calls import Later, QuickMethod
from eddyline.core.server.server import RawMethod
from eddyline.core.telemetry.trace_context import traceparent_in, traceparent_of
from eddyline.core.telemetry.tracing import NOOP_TRACER
from eddyline.store.rpc.append_stream_call import AppendStreamCall
from eddyline.store.rpc.requests import new_topic, parse_append_request, parse_filter
from eddyline.store.rpc.stream_records_call import StreamRecordsCall, parse_stream
from eddyline.v1 import log_pb2, log_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence

    from eddyline.core.codec.row_split import SplitRequest
    from eddyline.core.server.deadline import CallContext
    from eddyline.core.store_link.protocol import AppendResult
    from eddyline.core.telemetry.trace_context import CalledContext
    from eddyline.core.telemetry.tracing import Tracer
    from eddyline.core.transport.quick_gate import Metadata
    from eddyline.store.log.append import AppendRequest
    from eddyline.store.rpc.limits import ScanLimit
    from eddyline.store.rpc.shard_handle import ShardHandle
    from eddyline.store.rpc.stream_context import CalledStream
    from eddyline.store.shard.api import ShardApi


class LogServicer(log_pb2_grpc.LogServiceServicer):
    """LogService on the shard of a handle."""

    def __init__(self, handle: ShardHandle, room: ScanLimit, tracer: Tracer = NOOP_TRACER) -> None:
        self._handle = handle
        self._room = room
        self._tracer = tracer

    def row_methods(self) -> dict[str, RawMethod]:
        """Return the methods that get a request and its rows separately, to register in place of the generated ones."""
        return {
            "AppendRecords": RawMethod(
                self.AppendRecords,
                rows_apart.append_records_request,
            ),
            "AppendStream": RawMethod(
                self.AppendStream,
                rows_apart.append_stream_request,
                log_pb2.AppendStreamResponse.SerializeToString,
                request_stream=True,
                response_stream=True,
            ),
        }

    async def AppendRecords(  # type: ignore[override]  # see `row_methods`
        self, apart: SplitRequest[log_pb2.AppendRecordsRequest], context: CalledContext
    ) -> bytes:
        shard = self._handle.get()
        append = self._parse(shard, apart, context.invocation_metadata())
        return _encode_append(await (shard.stage_now(append) or await shard.stage(append)))

    def quick_methods(self) -> dict[str, QuickMethod]:
        """Return how appends that have their place at once are answered: by their acknowledgement."""
        return {"AppendRecords": QuickMethod(rows_apart.append_records_request, self._append_now)}

    def _append_now(self, apart: SplitRequest[log_pb2.AppendRecordsRequest], metadata: Metadata) -> Later | None:
        shard = self._handle.get()
        ack = shard.stage_now(self._parse(shard, apart, metadata))
        return None if ack is None else Later(ack, _encode_append)

    def _parse(
        self,
        shard: ShardApi,
        apart: SplitRequest[log_pb2.AppendRecordsRequest],
        metadata: Iterable[Sequence[str | bytes]] | None,
    ) -> AppendRequest:
        request = apart.message
        create = new_topic(request.create) if request.HasField("create") else None
        kind = shard.kind_of(request.topic)
        if kind is None and create is not None:
            kind = create.kind
        append = parse_append_request(
            request, apart.rows, topic=request.topic, kind=kind, epoch=request.epoch, create=create
        )
        if self._tracer.is_on and (traceparent := traceparent_in(metadata)):
            append = append._replace(traceparent=traceparent)
        return append

    async def AppendStream(  # type: ignore[override]  # gRPC takes coroutines that write, its types only generators
        self,
        request_iterator: AsyncIterator[SplitRequest[log_pb2.AppendStreamRequest]],
        context: CalledStream[log_pb2.AppendStreamResponse],
    ) -> None:
        traceparent = traceparent_of(context) if self._tracer.is_on else ""
        call = AppendStreamCall(self._handle, steps=request_iterator, context=context, traceparent=traceparent)
        await call.run()

    async def ReadRecords(
        self, request: log_pb2.ReadRecordsRequest, context: CallContext
    ) -> log_pb2.ReadRecordsResponse:
        shard = self._handle.get()
        as_columns = wire.wants_columns(request.format)
        record_filter = parse_filter(request.filter)
        if request.wait_ms > READ_WAIT_MS_MAX:
            raise InvalidArgument(
                f"wait_ms must be 0 to {READ_WAIT_MS_MAX}, not {request.wait_ms}",
                field="wait_ms",
                value=request.wait_ms,
                valueMax=READ_WAIT_MS_MAX,
            )
        reading = shard.read_records(
            request.topic,
            after_seq=request.after_seq,
            epoch=request.epoch,
            limit=request.limit,
            max_bytes=request.max_bytes,
            wait_ms=int(wait_timeout_s(context, request.wait_ms / 1000) * 1000) if request.wait_ms else 0,
            record_filter=record_filter,
        )
        result = await (self._handle.cancel_on_stop(reading) if request.wait_ms else reading)
        answer = log_pb2.ReadRecordsResponse(
            next_after_seq=result.next_after_seq,
            head_seq=result.head_seq,
            earliest_seq=result.earliest_seq,
            caught_up=result.caught_up,
            lag=result.lag,
            epoch=result.epoch,
            batch_end=result.batch_end,
        )
        for item in result.items:
            wire.fill_item(answer.items.add(), item, as_columns=as_columns)
        return answer

    async def StreamRecords(
        self, request: log_pb2.StreamRecordsRequest, context: CallContext
    ) -> AsyncGenerator[log_pb2.StreamRecordsResponse, None]:
        self._handle.get()
        call = StreamRecordsCall(self._handle, self._room, parse_stream(request), context)
        async with aclosing(call.run()) as frames:
            async for frame in frames:
                yield frame

    async def FindSeq(self, request: log_pb2.FindSeqRequest, context: object) -> log_pb2.FindSeqResponse:
        shard = self._handle.get()
        which = request.WhichOneof("time")
        if which is None:
            message = "a point in time is missing: commit_time_ms or source_time_ns"
            raise InvalidArgument(message, field="time")
        match = await shard.find_seq(
            request.topic,
            epoch=request.epoch,
            commit_time_ms=request.commit_time_ms if which == "commit_time_ms" else None,
            source_time_ns=request.source_time_ns if which == "source_time_ns" else None,
        )
        return wire_calls.seq_found_to_pb(match)

    async def DeleteRecords(
        self, request: log_pb2.DeleteRecordsRequest, context: object
    ) -> log_pb2.DeleteRecordsResponse:
        shard = self._handle.get()
        match = wire_calls.match_from_pb(request.match) if request.HasField("match") else None
        check_delete(request.before_seq, match, shard.kind_of(request.topic))
        deleting = shard.delete_records(request.topic, epoch=request.epoch, before_seq=request.before_seq, match=match)
        return wire_calls.delete_result_to_pb(await deleting)


def _encode_append(result: AppendResult) -> bytes:
    """Encode an AppendRecordsResponse."""
    return log_pb2.AppendRecordsResponse(
        first_seq=result.first_seq,
        last_seq=result.last_seq,
        epoch=result.epoch,
        ts_ms=result.ts_ms,
        deduplicated=result.deduplicated,
    ).SerializeToString()
