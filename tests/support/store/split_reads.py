"""Plans read to their end, and splits read to rows and gaps, as any reader of them must."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import ipc
from xxhash import xxh3_64_intdigest

from eddyline.core.records.arrow import arrow_schema, from_arrow
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.store.splits.model import ALL, ArrowMessage, PlanRequest, SchemaMessage, Split, SplitCounts, SplitRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eddyline.store.shard.shard import Shard
    from eddyline.store.splits.model import SplitFilter, SplitPlan


class ReadSplit(NamedTuple):
    """The rows and gaps of a split."""

    items: list[Record | Gap]
    messages: list[bytes]
    counts: SplitCounts


async def planned(link: Shard, topic: str, asked: PlanRequest) -> tuple[SplitPlan, list[Split]]:
    """The last page of a plan, and the splits of all pages."""
    splits: list[Split] = []
    mark = asked.mark
    while True:
        plan = await link.plan_splits(
            topic,
            PlanRequest(
                asked.after_seq,
                asked.end_seq,
                asked.as_of_seq,
                asked.split_filter,
                asked.max_records,
                asked.max_bytes,
                asked.limit,
                mark,
            ),
        )
        splits += plan.splits
        mark = plan.mark
        if mark is None:
            return plan, splits
        assert len(plan.splits) == asked.limit


async def read_split(
    link: Shard, topic: str, split: Split, *, epoch: int, split_filter: SplitFilter = ALL
) -> ReadSplit:
    """One split, all columns; every message is held against its checksum and the counts against the range."""
    items: list[Record | Gap] = []
    messages: list[bytes] = []
    counts: SplitCounts | None = None
    asked = SplitRead(split, split_filter)
    async with aclosing(link.read_split(topic, asked, epoch=epoch)) as frames:
        first = await anext(frames)
        assert isinstance(first, SchemaMessage)
        assert ipc.read_schema(pa.py_buffer(first.message)).equals(arrow_schema())
        async for frame in frames:
            assert counts is None, "the counts come last"
            if isinstance(frame, ArrowMessage):
                batch = batch_of(frame)
                assert batch.count == frame.rows > 0
                messages.append(frame.message)
                items += batch.to_rows()
            elif isinstance(frame, Gap):
                items.append(frame)
            else:
                assert isinstance(frame, SplitCounts)
                counts = frame
    assert counts is not None
    assert sum(counts) == split.last - split.first + 1
    assert counts.row_count == sum(isinstance(item, Record) for item in items)
    return ReadSplit(items, messages, counts)


def batch_of(message: ArrowMessage) -> Batch:
    """The batch of a message with all columns."""
    assert xxh3_64_intdigest(message.message) == message.checksum
    return from_arrow(ipc.read_record_batch(pa.py_buffer(message.message), arrow_schema()))


def joined(items: Sequence[Record | Gap]) -> list[Record | Gap]:
    """Items with what retention took in one gap, where a split's end cut it in two."""
    found: list[Record | Gap] = []
    for item in items:
        before = found[-1] if found else None
        if (
            isinstance(item, Gap)
            and isinstance(before, Gap)
            and _is_floor(item)
            and _is_floor(before)
            and before.last_seq + 1 == item.first_seq
        ):
            found[-1] = before._replace(last_seq=item.last_seq)
        else:
            found.append(item)
    return found


def within(items: Sequence[Record | Gap], last_seq: int) -> list[Record | Gap]:
    """The items up to `last_seq`."""
    found: list[Record | Gap] = []
    for item in items:
        if isinstance(item, Record):
            if item.seq <= last_seq:
                found.append(item)
        elif _is_floor(item):
            if item.first_seq <= last_seq:
                found.append(item._replace(last_seq=min(item.last_seq, last_seq)))
        elif item.seq <= last_seq:
            found.append(item)
    return found


def _is_floor(gap: Gap) -> bool:
    return not gap.seq and gap.reason != GapReason.RECREATED
