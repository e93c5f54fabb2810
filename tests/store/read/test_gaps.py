"""Reads over floors and deletes, end to end: each row of the table of semantics, with the log in every place."""

from __future__ import annotations

import pytest

from eddyline.core.errors import CursorAhead
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Gap, GapReason, Record
from tests.support.models.history import read_items
from tests.support.store.simulated import LOG_PLACES, LogPlace, PlacedStore, append, placed_store, rows

pytestmark = pytest.mark.parametrize("place", LOG_PLACES)


async def topic_of(store: PlacedStore, config: TopicConfig, count: int) -> None:
    """Make a LOG topic with `count` appends of one record."""
    await store.link.create_topic("t", Kind.LOG, config)
    await more(store, count)


async def more(store: PlacedStore, count: int) -> None:
    """Make `count` more appends."""
    for _ in range(count):
        await append(store.link, "t", rows("x"))
    await store.put()


async def events(store: PlacedStore, after_seq: int = 0) -> list[int | Gap]:
    """Read the log: seqs of records, and gaps."""
    items = await read_items(store.link, "t", after_seq)
    return [item.seq if isinstance(item, Record) else item for item in items]


async def test_evicted_records_are_a_gap(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=3), 5)
        assert await events(store) == [Gap(1, 2, GapReason.CAP), 3, 4, 5]


async def test_gap_covers_only_the_seqs_above_the_cursor(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=3), 5)
        assert await events(store, 1) == [Gap(2, 2, GapReason.CAP), 3, 4, 5]


async def test_no_gap_for_a_cursor_past_the_evicted_records(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=3), 5)
        assert await events(store, 2) == [3, 4, 5]


async def test_deletes_leave_no_gap(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(), 5)
        assert (await store.link.delete_records("t", before_seq=3)).deleted_count == 2
        await store.put()
        assert await events(store) == [3, 4, 5]


async def test_gap_over_deleted_records_is_an_upper_bound(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=4), 4)
        assert (await store.link.delete_records("t", before_seq=3)).deleted_count == 2
        await more(store, 6)
        assert await events(store) == [Gap(1, 6, GapReason.CAP), 7, 8, 9, 10]


async def test_expired_topic_is_one_gap_up_to_the_head(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(ttl_ms=1_000), 5)
        store.clock.advance(1.002)
        read = await store.link.read_records("t", after_seq=0)
        assert (read.items, read.caught_up) == ((Gap(1, 5, GapReason.TTL),), True)
        assert (read.earliest_seq, read.next_after_seq) == (6, 5)


async def test_cursor_of_a_recreated_topic_gets_a_gap_and_the_earliest_records(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(), 2)
        old = (await store.link.get_topic("t")).epoch
        await store.link.delete_topic("t")
        await topic_of(store, TopicConfig(cap_records=1), 3)
        new = (await store.link.get_topic("t")).epoch
        read = await store.link.read_records("t", after_seq=9, epoch=old)
        gap = Gap(0, 0, GapReason.RECREATED, old_epoch=old, new_epoch=new)
        assert read.items[0] == gap
        assert [row.seq for row in read.items[1].to_rows()] == [3]  # type: ignore[union-attr]


async def test_cursor_above_the_head_is_refused(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(), 2)
        with pytest.raises(CursorAhead) as ahead:
            await store.link.read_records("t", after_seq=3)
        assert ahead.value.head_seq == 2
