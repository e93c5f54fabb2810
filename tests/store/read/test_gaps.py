"""Reads over floors and deletes, end to end: each row of the semantics' table, wherever the log lies."""

from __future__ import annotations

import pytest

from eddyline.core.errors import CursorAhead
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Gap, GapReason, Record
from tests.support.store.placement import PLACES, Place, PlacedStore, items_after, placed_store
from tests.support.store.simulated import append, rows

pytestmark = pytest.mark.parametrize("place", PLACES)


async def topic_of(store: PlacedStore, config: TopicConfig, count: int) -> None:
    """A LOG topic with so many appends of one record."""
    await store.link.create_topic("t", Kind.LOG, config)
    await more(store, count)


async def more(store: PlacedStore, count: int) -> None:
    """So many appends more."""
    for _ in range(count):
        await append(store.link, "t", rows("x"))
    await store.put()


async def told(store: PlacedStore, after_seq: int = 0) -> list[int | Gap]:
    """What a reader is told: seqs and gaps."""
    items = await items_after(store.link, "t", after_seq)
    return [item.seq if isinstance(item, Record) else item for item in items]


async def test_cap_tells_what_it_took(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=3), 5)
        assert await told(store) == [Gap(1, 2, GapReason.CAP), 3, 4, 5]


async def test_cap_tells_only_what_the_cursor_missed(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=3), 5)
        assert await told(store, 1) == [Gap(2, 2, GapReason.CAP), 3, 4, 5]


async def test_cap_is_silent_behind_what_it_took(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=3), 5)
        assert await told(store, 2) == [3, 4, 5]


async def test_delete_is_silent(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(), 5)
        assert (await store.link.delete_records("t", before_seq=3)).deleted_count == 2
        await store.put()
        assert await told(store) == [3, 4, 5]


async def test_cap_over_a_delete_tells_an_upper_bound(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(cap_records=4), 4)
        assert (await store.link.delete_records("t", before_seq=3)).deleted_count == 2
        await more(store, 6)
        assert await told(store) == [Gap(1, 6, GapReason.CAP), 7, 8, 9, 10]


async def test_topic_of_which_all_expired_tells_one_gap_and_is_level(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(ttl_ms=1_000), 5)
        store.clock.advance(1.002)
        read = await store.link.read_records("t", after_seq=0)
        assert (read.items, read.caught_up) == ((Gap(1, 5, GapReason.TTL),), True)
        assert (read.earliest_seq, read.next_after_seq) == (6, 5)


async def test_cursor_of_a_topic_made_anew_is_told_so_and_begins_at_the_earliest(place: Place) -> None:
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


async def test_cursor_above_the_head_is_refused(place: Place) -> None:
    async with placed_store(place) as store:
        await topic_of(store, TopicConfig(), 2)
        with pytest.raises(CursorAhead) as ahead:
            await store.link.read_records("t", after_seq=3)
        assert ahead.value.head_seq == 2
