"""LogService: appends and reads. Translates, validates, delegates."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from eddyline.core import wire
from eddyline.core.errors import InvalidArgument
from eddyline.core.read import READ_WAIT_MS_MAX
from eddyline.store.rpc.append_request import append_request
from eddyline.store.rpc.append_stream import AppendStreamCall
from eddyline.store.rpc.calls import patience_s
from eddyline.store.rpc.new_topic import new_topic
from eddyline.v1 import log_pb2, log_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.read import RecordFilter
    from eddyline.store.rpc.calls import CallContext, StreamContext
    from eddyline.store.rpc.doorway import Doorway

FILTER_CONDITIONS_MAX: Final = 1_000
"""Elsewhere unbounded. Each condition is compared with every record examined: this many prefixes times the 65 536 records of
one read are about a second of the loop, more would stop the store for everybody."""


class LogServicer(log_pb2_grpc.LogServiceServicer):
    """Serves the logs of the shard behind the doorway."""

    def __init__(self, doorway: Doorway) -> None:
        self._doorway = doorway

    async def AppendRecords(
        self, request: log_pb2.AppendRecordsRequest, context: object
    ) -> log_pb2.AppendRecordsResponse:
        door = self._doorway.enter()
        create = new_topic(request.create) if request.HasField("create") else None
        kind = door.kind_of(request.topic)
        if kind is None and create is not None:
            kind = create.kind
        append = append_request(request, topic=request.topic, kind=kind, epoch=request.epoch, create=create)
        # Shielded: who goes away does not take back an append that has its place.
        result = await asyncio.shield(await door.stage(append))
        return log_pb2.AppendRecordsResponse(
            first_seq=result.first_seq,
            last_seq=result.last_seq,
            epoch=result.epoch,
            ts_ms=result.ts_ms,
            deduplicated=result.deduplicated,
        )

    async def AppendStream(  # type: ignore[override]  # gRPC takes coroutines that write, its types only generators
        self,
        request_iterator: AsyncIterator[log_pb2.AppendStreamRequest],
        context: StreamContext[log_pb2.AppendStreamResponse],
    ) -> None:
        await AppendStreamCall(self._doorway, steps=request_iterator, context=context).run()

    async def ReadRecords(
        self, request: log_pb2.ReadRecordsRequest, context: CallContext
    ) -> log_pb2.ReadRecordsResponse:
        door = self._doorway.enter()
        as_columns = wire.wants_columns(request.format)
        record_filter = _filter(request.filter)
        if request.wait_ms > READ_WAIT_MS_MAX:
            raise InvalidArgument(
                f"wait_ms is 0 to {READ_WAIT_MS_MAX}, not {request.wait_ms}",
                field="wait_ms",
                value=request.wait_ms,
                valueMax=READ_WAIT_MS_MAX,
            )
        reading = door.read_records(
            request.topic,
            after_seq=request.after_seq,
            epoch=request.epoch,
            limit=request.limit,
            max_bytes=request.max_bytes,
            wait_ms=int(patience_s(context, request.wait_ms / 1000) * 1000) if request.wait_ms else 0,
            record_filter=record_filter,
        )
        result = await (self._doorway.until_closing(reading) if request.wait_ms else reading)
        answer = log_pb2.ReadRecordsResponse(
            next_after_seq=result.next_after_seq,
            head_seq=result.head_seq,
            earliest_seq=result.earliest_seq,
            caught_up=result.caught_up,
            lag=result.lag,
            epoch=result.epoch,
        )
        for item in result.items:
            wire.fill_item(answer.items.add(), item, as_columns=as_columns)
        return answer


def _filter(asked: log_pb2.RecordFilter) -> RecordFilter:
    for field in ("key_prefixes", "tags", "exclude_nodes", "ops"):
        count = len(getattr(asked, field))
        if count > FILTER_CONDITIONS_MAX:
            raise InvalidArgument(
                f"at most {FILTER_CONDITIONS_MAX} of {field} in a filter, not {count}",
                field=f"filter.{field}",
                conditions=count,
                conditionsMax=FILTER_CONDITIONS_MAX,
            )
    return wire.filter_from_pb(asked)
