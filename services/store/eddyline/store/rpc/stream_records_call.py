"""One StreamRecords call: the log from a cursor on, read piece by piece, its gaps healed by the fold on request.

I1: a reader that resumes at a frame's `epoch` and `next_after_seq` neither misses nor repeats a record. If gaps are healed,
these stay before the gap until the snapshot is complete, so a stream that breaks off in it heals the gap again.
I2: `caught_up` is sent once, after everything up to the head at the stream's start. I3: without `follow` the stream ends.
Memory: one read's answer, or one page of a snapshot. Threading: event loop; the call's own task.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from eddyline.core.codec import records as wire
from eddyline.core.errors import InvalidArgument, NotKv
from eddyline.core.model.read import READ_LIMIT_MAX, READ_WAIT_MS_MAX
from eddyline.core.model.record_filter import matching
from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Gap, GapReason
from eddyline.store.rpc.requests import parse_filter
from eddyline.v1 import log_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from eddyline.core.model.read import ReadResult, RecordFilter
    from eddyline.core.records.batch import Batch
    from eddyline.core.server.deadline import CallContext
    from eddyline.store.rpc.limits import ScanLimit
    from eddyline.store.rpc.shard_handle import ShardHandle

    Frames = AsyncGenerator[log_pb2.StreamRecordsResponse, None]

READ_BYTES: Final = 1 << 20
"""Bytes of one read: a frame is at most this, or one record, far below a message; a larger one would only hold more memory
per stream while a slow reader takes it."""
ENDLESS: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """A checked request. `end_seq` 0 = none was given."""

    topic: str
    after_seq: int
    epoch: int
    end_seq: int
    follow: bool
    record_filter: RecordFilter
    as_columns: bool
    heals: bool


class StreamRecordsCall:
    """State of one StreamRecords call."""

    def __init__(self, handle: ShardHandle, room: ScanLimit, request: StreamRequest, context: CallContext) -> None:
        self._handle = handle
        self._room = room
        self._request = request
        self._context = context
        self._cursor = request.after_seq
        self._epoch = request.epoch
        self._end_seq = request.end_seq
        self._target: int | None = None  # the head at the start; None once `caught_up` was sent

    async def run(self) -> Frames:
        """Yield the frames.

        Raises:
            the contract's errors of StreamRecords; NotReady: the store stops.
        """
        if self._request.heals:
            await self._check_heals()
        result = await self._read(wait=False)
        self._target = result.head_seq
        last = self._last_seq(result.head_seq)
        while True:
            if self._epoch and self._epoch != result.epoch:
                # The topic was replaced since the cursor was made: the bounds were the old one's.
                self._end_seq = 0
                last = self._last_seq(result.head_seq)
                self._target = None if self._target is None else result.head_seq
            async with aclosing(self._frames(result, last)) as frames:
                async for frame in frames:
                    yield frame
            if self._target is not None and self._cursor >= self._target:
                self._target = None
                level = log_pb2.StreamRecordsResponse.CaughtUp(head_seq=max(result.head_seq, self._cursor))
                yield self._frame(log_pb2.StreamRecordsResponse(caught_up=level))
            if self._cursor >= last:
                return
            result = await self._read(wait=self._request.follow)

    async def _check_heals(self) -> None:
        info = await self._handle.get().get_topic(self._request.topic)
        if info.kind is not Kind.KV:
            raise NotKv(f"topic {info.name} has no fold to heal a gap from", topic=info.name)

    async def _read(self, *, wait: bool) -> ReadResult:
        """Read on from the cursor; `wait` = if there is no record yet, wait for as long as a read may."""
        reading = self._handle.get().read_records(
            self._request.topic,
            after_seq=self._cursor,
            epoch=self._epoch,
            limit=READ_LIMIT_MAX,
            max_bytes=READ_BYTES,
            wait_ms=READ_WAIT_MS_MAX if wait else 0,
            record_filter=self._request.record_filter,
        )
        return await (self._handle.cancel_on_stop(reading) if wait else reading)

    def _last_seq(self, head_seq: int) -> int:
        """Return the last seq that the stream sends, inclusive."""
        if self._end_seq:
            return self._end_seq - 1 if self._request.follow else min(self._end_seq - 1, head_seq)
        return ENDLESS if self._request.follow else head_seq

    async def _frames(self, result: ReadResult, last: int) -> Frames:
        """Yield a read's answer as frames, up to `last`, and move the cursor behind them."""
        items = _up_to(result, last)
        settled = min(last, result.next_after_seq)
        for number, item in enumerate(items, start=1):
            if isinstance(item, Gap) and self._request.heals:
                yield self._frame(_item_frame(item, as_columns=False))
                async with aclosing(self._snapshot()) as frames:
                    async for frame in frames:
                        yield frame
                return
            own_seq = item.own_seq if isinstance(item, Gap) else item.last_seq
            is_last = number == len(items)
            self._cursor, self._epoch = settled if is_last else min(last, own_seq), result.epoch
            frame = _item_frame(item, as_columns=self._request.as_columns)
            frame.batch_end = is_last and result.batch_end and settled == result.next_after_seq
            yield self._frame(frame)
        self._epoch = result.epoch
        if settled > self._cursor:
            self._cursor = settled
            whole = result.batch_end and settled == result.next_after_seq
            yield self._frame(log_pb2.StreamRecordsResponse(batch_end=whole))

    async def _snapshot(self) -> Frames:
        """Yield the fold at one point, and move the cursor to that point."""
        request, shard = self._request, self._handle.get()
        record_filter = request.record_filter
        if record_filter.exclude_nodes and not (await shard.get_topic(request.topic)).config.dedupe_node:
            record_filter = replace(record_filter, exclude_nodes=())
        prefixes = record_filter.key_prefixes
        pages = shard.range_entries(request.topic, key_prefix=prefixes[0] if len(prefixes) == 1 else b"")
        count, state = 0, None
        with self._room.of(self._context):
            async with aclosing(pages):
                async for page in pages:
                    if state is None:
                        begin = log_pb2.StreamRecordsResponse.SnapshotBegin(seq=page.state.fold_seq)
                        yield self._frame(log_pb2.StreamRecordsResponse(snapshot_begin=begin))
                    state = page.state
                    batch = _selected(page.batch, record_filter) if page.batch is not None else None
                    if batch is not None:
                        count += batch.count
                        yield self._frame(_item_frame(batch, as_columns=request.as_columns))
        assert state is not None  # a range has at least one page
        self._cursor, self._epoch = state.fold_seq, state.epoch
        end = log_pb2.StreamRecordsResponse.SnapshotEnd(count=count)
        yield self._frame(log_pb2.StreamRecordsResponse(snapshot_end=end, batch_end=True))

    def _frame(self, frame: log_pb2.StreamRecordsResponse) -> log_pb2.StreamRecordsResponse:
        frame.next_after_seq, frame.epoch = self._cursor, self._epoch
        return frame


def parse_stream(request: log_pb2.StreamRecordsRequest) -> StreamRequest:
    """Check a request as far as it does not depend on the topic.

    Raises:
        InvalidArgument.
    """
    if request.on_gap not in log_pb2.GapPolicy.values():
        message = f"unknown on_gap {request.on_gap}"
        raise InvalidArgument(message, field="on_gap", onGap=request.on_gap)
    heals = request.on_gap == log_pb2.GAP_POLICY_HEAL
    if heals and request.end_seq:
        message = "on_gap HEAL excludes end_seq: its snapshot is at the head"
        raise InvalidArgument(message, field="end_seq")
    return StreamRequest(
        topic=request.topic,
        after_seq=request.after_seq,
        epoch=request.epoch,
        end_seq=request.end_seq,
        follow=request.follow,
        record_filter=parse_filter(request.filter),
        as_columns=wire.wants_columns(request.format),
        heals=heals,
    )


def _up_to(result: ReadResult, last: int) -> list[Batch | Gap]:
    """Return the items of a read up to `last`."""
    if result.next_after_seq <= last:
        return list(result.items)
    items: list[Batch | Gap] = []
    for item in result.items:
        if isinstance(item, Gap):
            if item.reason == GapReason.RECREATED or item.first_seq <= last:
                # A gap without a seq of its own is cut like a range; one with a seq is sent whole.
                items.append(item if item.seq else item._replace(last_seq=min(item.last_seq, last)))
        elif kept := item.index_after(last):
            items.append(item.slice(0, kept))
    return items


def _selected(batch: Batch, record_filter: RecordFilter) -> Batch | None:
    indices = matching(batch, record_filter)
    if indices is None:
        return batch
    return batch.select(indices) if len(indices) else None


def _item_frame(item: Batch | Gap, *, as_columns: bool) -> log_pb2.StreamRecordsResponse:
    if isinstance(item, Gap):
        return log_pb2.StreamRecordsResponse(gap=wire.gap_to_pb(item))
    answer = log_pb2.StreamRecordsResponse()
    if as_columns:
        wire.fill_columns(answer.columns, item)
    else:
        wire.fill_rows(answer.rows, item)
    return answer
