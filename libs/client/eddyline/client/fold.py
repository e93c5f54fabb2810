"""Reads of the fold: one key, some keys, a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc

from eddyline.client.call import CALL_TIMEOUT_S
from eddyline.core.read import EntryPage
from eddyline.core.status import unwrap
from eddyline.core.wire import record_from_pb
from eddyline.core.wire_state import fold_state_from_pb
from eddyline.v1 import fold_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from eddyline.client.call import Retry
    from eddyline.core.record import Record
    from eddyline.v1.fold_pb2_grpc import FoldServiceStub

RANGE_TIMEOUT_S: Final = 300.0
"""A range's view lives at most this long at the store."""


async def get_entries(
    stub: FoldServiceStub, topic: str, keys: Sequence[bytes], *, min_seq: int, retry: Retry
) -> EntryPage:
    """Read keys at one point, answered in their order; None = not live.

    Raises:
        EddylineError: TopicNotFound, NotKv, FoldBehind, InvalidArgument (more than 10 000 keys).
    """
    request = fold_pb2.BatchGetEntriesRequest(topic=topic, keys=keys, min_seq=min_seq)
    answer = await retry.run(lambda left_s: stub.BatchGetEntries(request, timeout=left_s), timeout_s=CALL_TIMEOUT_S)
    entries = tuple(record_from_pb(maybe.entry) if maybe.HasField("entry") else None for maybe in answer.entries)
    return EntryPage(fold_state_from_pb(answer.state), entries)


async def range_entries(
    stub: FoldServiceStub, topic: str, *, key_prefix: bytes, after_key: bytes, limit: int, min_seq: int
) -> AsyncIterator[Record]:
    """Yield live entries in byte order of their keys, all at one point.

    Raises:
        EddylineError: TopicNotFound, NotKv, FoldBehind, TooManyScans, ScanExpired, and a store that went away: what
            came so far is of a point that is gone, so a range does not resume.
    """
    request = fold_pb2.RangeEntriesRequest(
        topic=topic,
        key_prefix=key_prefix,
        after_key=after_key,
        limit=limit,
        min_seq=min_seq,
        format=types_pb2.BATCH_FORMAT_ROWS,
    )
    call = stub.RangeEntries(request, timeout=RANGE_TIMEOUT_S)
    try:
        async for answer in call:
            for record in answer.rows.records:
                yield record_from_pb(record)
    except grpc.aio.AioRpcError as error:
        raise unwrap(error) from None
    finally:
        call.cancel()
