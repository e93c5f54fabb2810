"""Reads of the log as an endless or bounded iterator of records and gaps.

A read of all there is, or of what comes, is a stream; one of so many records asks for pages of just those. Both outlive
restarts of the store and go on where they broke off.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.read.stream import FOLLOW_PATIENCE_S, StreamPlace, StreamPlan, stream_from
from eddyline.client.transport.call import CALL_TIMEOUT_S
from eddyline.client.transport.items import Items
from eddyline.client.transport.records import decode_records
from eddyline.client.watch.events import Lost, Records
from eddyline.core.codec.calls import seq_found_from_pb
from eddyline.core.codec.records import filter_to_pb, gap_from_pb
from eddyline.core.model.read import ALL_RECORDS, READ_BYTES_MAX, RecordFilter
from eddyline.core.records.record import Gap
from eddyline.v1 import log_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from eddyline.client.transport.call import Retry
    from eddyline.client.watch.events import Position
    from eddyline.core.errors import EddylineError
    from eddyline.core.model.read import SeqFound
    from eddyline.core.records.record import Record
    from eddyline.v1.log_pb2_grpc import LogServiceStub

PAGE_RECORDS: Final = 1_000
PAGE_BYTES: Final = READ_BYTES_MAX // 4
FOLLOW_WAIT_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The request of one read; `limit` 0 = up to the head.

    `on_retry` hears why a call is repeated, `on_resume` that one answers again.
    """

    topic: str
    after: Position
    limit: int = 0
    follow: bool = False
    record_filter: RecordFilter = ALL_RECORDS
    on_retry: Callable[[EddylineError], None] | None = None
    on_resume: Callable[[], None] | None = None


def read_log(stub: LogServiceStub, plan: ReadPlan, *, retry: Retry) -> Items[Record | Gap]:
    """Yield what `plan` asks for, in order, gaps in their places.

    Raises:
        EddylineError: TopicNotFound, CursorAhead, DataCorrupt; an unreachable store after a while.
    """
    if plan.limit:
        pages = _Pages(plan)
        return Items(lambda: _read_pages(stub, pages, retry))
    place = StreamPlace(
        StreamPlan(
            plan.topic,
            plan.after,
            follow=plan.follow,
            record_filter=plan.record_filter,
            on_retry=plan.on_retry,
            on_resume=plan.on_resume,
        )
    )
    return Items(lambda: _read_stream(stub, place, retry))


async def find_seq(
    stub: LogServiceStub,
    topic: str,
    *,
    commit_time_ms: int | None,
    source_time_ns: int | None,
    epoch: int,
    retry: Retry,
) -> SeqFound:
    """Look a time up, by exactly one of the two.

    Raises:
        EddylineError: TopicNotFound, EpochMismatch, InvalidArgument, DataCorrupt.
    """
    request = log_pb2.FindSeqRequest(topic=topic, epoch=epoch)
    if commit_time_ms is not None:
        request.commit_time_ms = commit_time_ms
    if source_time_ns is not None:
        request.source_time_ns = source_time_ns
    answer = await retry.run(lambda left_s: stub.FindSeq(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S)
    return seq_found_from_pb(answer)


async def _read_stream(
    stub: LogServiceStub, place: StreamPlace, retry: Retry
) -> AsyncGenerator[Sequence[Record | Gap], None]:
    # A cancelled read waits for a frame: all records of the frames before it were given.
    async with aclosing(stream_from(stub, place, retry=retry)) as events:
        async for event in events:
            if isinstance(event, Records):
                yield event.records
            elif isinstance(event, Lost):
                yield (event.gap,)


class _Pages:
    """How far a read by pages is: what to ask for next, and how many records are left."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan
        self.left = plan.limit
        self.request = log_pb2.ReadRecordsRequest(
            topic=plan.topic,
            after_seq=plan.after.seq,
            epoch=plan.after.epoch,
            max_bytes=PAGE_BYTES,
            wait_ms=FOLLOW_WAIT_MS if plan.follow else 0,
            format=types_pb2.BATCH_FORMAT_COLUMNS,
            filter=filter_to_pb(plan.record_filter),
        )


async def _read_pages(
    stub: LogServiceStub, pages: _Pages, retry: Retry
) -> AsyncGenerator[Sequence[Record | Gap], None]:
    plan, request = pages.plan, pages.request
    while True:
        request.limit = min(pages.left, PAGE_RECORDS)
        answer = await _read_page(stub, request, plan, retry)
        # All of a page before any of it is given: the place moves behind the page as a whole.
        for item in [_decode_item(item) for item in answer.items]:
            if isinstance(item, Gap):
                yield (item,)
            else:
                pages.left -= len(item)
                yield item
        if pages.left <= 0 or (answer.caught_up and not plan.follow):
            return
        request.after_seq, request.epoch = answer.next_after_seq, answer.epoch


def _decode_item(item: log_pb2.BatchItem) -> Gap | Sequence[Record]:
    if item.WhichOneof("item") == "gap":
        return gap_from_pb(item.gap)
    return decode_records(item.rows if item.WhichOneof("item") == "rows" else item.columns)


async def _read_page(
    stub: LogServiceStub, request: log_pb2.ReadRecordsRequest, plan: ReadPlan, retry: Retry
) -> log_pb2.ReadRecordsResponse:
    failed = False

    def report(error: EddylineError) -> None:
        nonlocal failed
        failed = True
        if plan.on_retry is not None:
            plan.on_retry(error)

    answer = await retry.run(
        lambda left_s: stub.ReadRecords(request, timeout=min(left_s, CALL_TIMEOUT_S)),
        timeout_s=FOLLOW_PATIENCE_S if plan.follow else CALL_TIMEOUT_S,
        on_retry=report,
    )
    if failed and plan.on_resume is not None:
        plan.on_resume()
    return answer
