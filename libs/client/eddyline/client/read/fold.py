"""Reads of the fold at the store: some keys, a range, a key as it was, and its revisions.

A fold of one's own (`LocalFold`, of `local_fold.py`) has its name here too.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from eddyline.client.transport.call import CALL_TIMEOUT_S, STREAM_RETRYABLE, domain_errors, kv_topic_wanted
from eddyline.client.transport.checked import check_bytes, check_each_bytes
from eddyline.client.transport.items import Items, read_once_in_batches
from eddyline.client.transport.records import decode_records
from eddyline.core.codec.entries import entries_from_pb, format_of, stored_entries_from_pb
from eddyline.core.codec.records import answer_from_columns, gap_from_pb, record_from_pb
from eddyline.core.codec.state import fold_state_from_pb
from eddyline.core.errors import EddylineError, KeyNotFound
from eddyline.core.model.read import EntryPage, FoldState, RangePage
from eddyline.core.records.batch import Batch
from eddyline.v1 import fold_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from eddyline.client.transport.call import Retry
    from eddyline.client.watch.events import Position
    from eddyline.core.records.record import Gap, Record
    from eddyline.v1.fold_pb2_grpc import FoldServiceStub

RANGE_TIMEOUT_S: Final = 300.0
"""A range's view lives at most this long at the store."""
HISTORY_S: Final = 300.0
"""Default in gRPC: no deadline; a stream whose store hangs would wait for ever. A longer history resumes with a new
call at its place."""


async def get_entries(
    stub: FoldServiceStub, topic: str, keys: Sequence[bytes], *, min_seq: int, retry: Retry
) -> EntryPage:
    """Read keys at one point, answered in their order; None = not live.

    Raises:
        EddylineError: TopicNotFound, NotKv, FoldBehind, InvalidArgument (more than 10 000 keys).
    """
    check_each_bytes("keys", keys)
    answer = await _batch_get(stub, topic, keys, min_seq=min_seq, batch_format=format_of(len(keys)), retry=retry)
    return EntryPage(fold_state_from_pb(answer.state), entries_from_pb(answer, keys))


async def get_columns(
    stub: FoldServiceStub, topic: str, keys: Sequence[bytes], *, min_seq: int, retry: Retry
) -> RangePage:
    """Read keys at one point, as a batch of the live ones in the order of `keys`; a repeated key comes each time.

    Raises:
        EddylineError: as `get_entries`. MalformedColumns: the answer's columns do not fit together.
    """
    check_each_bytes("keys", keys)
    columns = types_pb2.BATCH_FORMAT_COLUMNS
    answer = await _batch_get(stub, topic, keys, min_seq=min_seq, batch_format=columns, retry=retry)
    state = fold_state_from_pb(answer.state)
    if answer.HasField("columns"):
        return RangePage(state, answer_from_columns(answer.columns) if answer.columns.count else None)
    rows = [entry for entry in stored_entries_from_pb(answer, keys) if entry is not None]  # of an earlier store
    return RangePage(state, Batch.from_rows(rows) if rows else None)


async def _batch_get(
    stub: FoldServiceStub,
    topic: str,
    keys: Sequence[bytes],
    *,
    min_seq: int,
    batch_format: types_pb2.BatchFormat.ValueType,
    retry: Retry,
) -> fold_pb2.BatchGetEntriesResponse:
    request = fold_pb2.BatchGetEntriesRequest(topic=topic, keys=keys, min_seq=min_seq, format=batch_format)
    with kv_topic_wanted():
        return await retry.run(lambda left_s: stub.BatchGetEntries(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S)


@read_once_in_batches("range")
async def range_entries(
    stub: FoldServiceStub, topic: str, *, key_prefix: bytes, after_key: bytes, limit: int, min_seq: int
) -> AsyncGenerator[Sequence[Record], None]:
    """Yield live entries, in batches, in byte order of their keys, all at one point.

    Raises:
        EddylineError: TopicNotFound, NotKv, FoldBehind, TooManyScans, ScanExpired, and a store that went away: what
            came so far is of a point that is gone, so a range does not resume.
    """
    check_bytes(key_prefix=key_prefix, after_key=after_key)
    request = fold_pb2.RangeEntriesRequest(
        topic=topic,
        key_prefix=key_prefix,
        after_key=after_key,
        limit=limit,
        min_seq=min_seq,
        format=types_pb2.BATCH_FORMAT_COLUMNS,
    )
    call = stub.RangeEntries(request, timeout=RANGE_TIMEOUT_S)
    try:
        with kv_topic_wanted(), domain_errors():
            async for answer in call:
                yield decode_records(answer.rows if answer.WhichOneof("entries") == "rows" else answer.columns)
    finally:
        call.cancel()


async def get_entry_at(
    stub: FoldServiceStub, topic: str, key: bytes, *, at_seq: int | None, at_time_ms: int | None, retry: Retry
) -> EntryPage:
    """Read a key as it was, by exactly one of the two: one entry, None = not live then.

    Raises:
        EddylineError: TopicNotFound, NotKv, CursorAhead, TimeNotReached, HistoryGone, FoldLost, DataCorrupt.
    """
    assert (at_seq is None) is not (at_time_ms is None)
    check_bytes(key=key)
    request = fold_pb2.GetEntryRequest(topic=topic, key=key)
    if at_seq is not None:
        request.at_seq = at_seq
    if at_time_ms is not None:
        request.at_time_ms = at_time_ms
    try:
        with kv_topic_wanted():
            answer = await retry.run(lambda left_s: stub.GetEntry(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S)
    except KeyNotFound as error:
        point = error.metadata.get("foldSeq", "")
        return EntryPage(FoldState(int(point) if point.isdecimal() else 0, 0), (None,))
    return EntryPage(fold_state_from_pb(answer.state), (record_from_pb(answer.entry),))


def key_history(
    stub: FoldServiceStub,
    topic: str,
    key: bytes,
    *,
    after: Position,
    limit: int,
    epoch_now: Callable[[], Awaitable[int]],
    retry: Retry,
) -> Items[Record | Gap]:
    """Yield the revisions of a key, oldest first, gaps in their places; resumed where it breaks off.

    `epoch_now`: of the present topic, called once if `after` has none, so that a resume does not go on in a successor.
    A caller that stops early closes it.

    Raises:
        EddylineError: TopicNotFound, NotKv, EpochMismatch, CursorAhead, DataCorrupt; an unreachable store after a while.
    """
    check_bytes(key=key)
    request = fold_pb2.KeyHistoryRequest(
        topic=topic,
        key=key,
        after_seq=after.seq,
        epoch=after.epoch,
        limit=limit,
        format=types_pb2.BATCH_FORMAT_COLUMNS,
    )

    async def begin() -> AsyncGenerator[Sequence[Record | Gap], None]:
        if not request.epoch:
            with kv_topic_wanted():
                request.epoch = await epoch_now()
        async with aclosing(_revisions(stub, request, limited=limit > 0, retry=retry)) as batches:
            async for batch in batches:
                yield batch

    return Items(begin)


async def _revisions(
    stub: FoldServiceStub, request: fold_pb2.KeyHistoryRequest, *, limited: bool, retry: Retry
) -> AsyncGenerator[Sequence[Record | Gap], None]:
    """Yield what `request` asks for; it moves behind what was yielded."""
    tries = retry.tries(timeout_s=CALL_TIMEOUT_S, retryable=STREAM_RETRYABLE)
    while not limited or request.limit > 0:
        call = stub.KeyHistory(request, timeout=HISTORY_S)
        try:
            with kv_topic_wanted(), domain_errors():
                async for answer in call:
                    kind = answer.WhichOneof("item")
                    records = decode_records(answer.rows if kind == "rows" else answer.columns)
                    if answer.next_after_seq != request.after_seq:
                        tries.reset()
                    request.after_seq = answer.next_after_seq
                    request.limit -= len(records) if limited else 0
                    yield (gap_from_pb(answer.gap),) if kind == "gap" else records
                return
        except EddylineError as error:
            failure = error
        finally:
            call.cancel()
        if limited and not request.limit:
            return
        await tries.wait(failure)
