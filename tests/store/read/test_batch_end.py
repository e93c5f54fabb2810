"""Reads report whether they end where an append ends: in frames, sealed segments and memory, and with filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.read import RecordFilter
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.store.storage.segment.writer import BYTES_MAX
from tests.support.manual_clock import ManualClock
from tests.support.store.simulated import append, log_topic, sim_store

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard

SIZES = (1, 3, 240, 2, 1, 120, 1)
"""Records of one append each, of 8 KiB: the large ones are cut to record batches of a segment."""
ROW_BYTES = 8 << 10
assert max(SIZES) * ROW_BYTES > 2 * BYTES_MAX


async def append_all(link: Shard, clock: ManualClock, *, apart_s: float = 0.001) -> set[int]:
    """Make appends of several sizes, `apart_s` apart. Returns the last seq of each."""
    ends, seq = set[int](), 0
    for size in SIZES:
        tag = "t" if size > 1 else None
        await append(link, "log", Batch.from_rows([Record(data=bytes(ROW_BYTES), tag=tag) for _ in range(size)]))
        seq += size
        ends.add(seq)
        clock.advance(apart_s)
    return ends


async def seal(link: Shard) -> None:
    topic = link._table.get("log")
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    assert len(list(topic.segments)) == 1


async def marked(link: Shard, last_seq: int, **options: object) -> set[int]:
    """Return the ends, among reads from each seq, that are marked as ends of an append."""
    reads = [await link.read_records("log", after_seq=seq, **options) for seq in range(last_seq)]  # type: ignore[arg-type]
    return {read.next_after_seq for read in reads if read.batch_end}


@pytest.mark.parametrize("place", ["frames", "segment", "memory"])
async def test_a_read_of_one_record_is_marked_only_at_ends_of_appends(place: str) -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        durability = Durability.EPHEMERAL if place == "memory" else Durability.DISK
        await link.create_topic("log", Kind.LOG, TopicConfig(durability))
        ends = await append_all(link, clock)
        if place == "segment":
            await seal(link)
        assert await marked(link, sum(SIZES), limit=1) == ends


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("max_bytes", [1, 64 << 10, 1 << 20])
async def test_no_mark_lies_within_an_append_though_all_have_one_time(max_bytes: int, is_sealed: bool) -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await log_topic(link)
        ends = await append_all(link, clock, apart_s=0.0)
        if is_sealed:
            await seal(link)
        marked_ends = await marked(link, sum(SIZES), max_bytes=max_bytes)
        assert marked_ends <= ends
        assert sum(SIZES) in marked_ends, "the head is an end"


async def test_filtered_records_are_examined_up_to_the_end_of_an_append() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await log_topic(link)
        ends = await append_all(link, clock)
        await seal(link)
        for tags in (("t",), ("none",)):
            assert await marked(link, sum(SIZES), record_filter=RecordFilter(tags=tags)) <= ends
