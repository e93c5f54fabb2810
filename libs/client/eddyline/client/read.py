"""Reads of the log as an endless or bounded iterator of records and gaps.

A read that follows waits at the server for the next record and outlives restarts; one that does not ends when it is level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eddyline.client.call import CALL_TIMEOUT_S
from eddyline.core.read import ALL_RECORDS, READ_BYTES_MAX, RecordFilter
from eddyline.core.wire import filter_to_pb, gap_from_pb, record_from_pb
from eddyline.v1 import log_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from eddyline.client.call import Retry
    from eddyline.client.events import Position
    from eddyline.core.errors import EddylineError
    from eddyline.core.record import Gap, Record
    from eddyline.v1.log_pb2_grpc import LogServiceStub

READ_RECORDS: Final = 1_000
READ_BYTES: Final = READ_BYTES_MAX // 4
FOLLOW_WAIT_MS: Final = 20_000
FOLLOW_PATIENCE_S: Final = 86_400.0
"""A follower waits this long for a store that is away before it gives up. A day: long enough for any repair."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one read asks for; `limit` 0 = all there is.

    `on_retry` hears why a call is repeated, `on_resume` that one answers again.
    """

    topic: str
    after: Position
    limit: int = 0
    follow: bool = False
    record_filter: RecordFilter = ALL_RECORDS
    on_retry: Callable[[EddylineError], None] | None = None
    on_resume: Callable[[], None] | None = None


async def read_log(stub: LogServiceStub, plan: ReadPlan, *, retry: Retry) -> AsyncIterator[Record | Gap]:
    """Yield what `plan` asks for, in order, gaps in their places.

    Raises:
        EddylineError: TopicNotFound, CursorAhead, DataCorrupt; an unreachable store after a while.
    """
    request = log_pb2.ReadRecordsRequest(
        topic=plan.topic,
        after_seq=plan.after.seq,
        epoch=plan.after.epoch,
        max_bytes=READ_BYTES,
        wait_ms=FOLLOW_WAIT_MS if plan.follow else 0,
        format=types_pb2.BATCH_FORMAT_ROWS,
        filter=filter_to_pb(plan.record_filter),
    )
    left = plan.limit
    while True:
        request.limit = min(left, READ_RECORDS) if plan.limit else READ_RECORDS
        answer = await _read_once(stub, request, plan, retry)
        for item in answer.items:
            if item.WhichOneof("item") == "gap":
                yield gap_from_pb(item.gap)
                continue
            for record in item.rows.records:
                yield record_from_pb(record)
                left -= 1
        if (plan.limit and left <= 0) or (answer.caught_up and not plan.follow):
            return
        request.after_seq, request.epoch = answer.next_after_seq, answer.epoch


async def _read_once(
    stub: LogServiceStub, request: log_pb2.ReadRecordsRequest, plan: ReadPlan, retry: Retry
) -> log_pb2.ReadRecordsResponse:
    failed = False

    def tell(error: EddylineError) -> None:
        nonlocal failed
        failed = True
        if plan.on_retry is not None:
            plan.on_retry(error)

    answer = await retry.run(
        lambda left_s: stub.ReadRecords(request, timeout=min(left_s, CALL_TIMEOUT_S)),
        timeout_s=FOLLOW_PATIENCE_S if plan.follow else CALL_TIMEOUT_S,
        on_retry=tell,
    )
    if failed and plan.on_resume is not None:
        plan.on_resume()
    return answer
