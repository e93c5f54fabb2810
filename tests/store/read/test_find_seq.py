"""Seq lookup by commit time and source time, with the log in every place, over floors and deletes."""

from __future__ import annotations

import asyncio

import pytest

from eddyline.core.errors import EpochMismatch, TopicNotFound
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Record
from tests.support.manual_clock import START_MS
from tests.support.storage.segments import segment_reads
from tests.support.store.simulated import (
    LOG_PLACES,
    LogPlace,
    PlacedStore,
    append,
    log_topic,
    placed_store,
    rows,
    sim_store,
)

PLAIN = TopicConfig()
EVERY = [*LOG_PLACES, None]
"""None = an EPHEMERAL topic, in memory."""


async def filled(store: PlacedStore, place: LogPlace | None, config: TopicConfig = PLAIN) -> None:
    """Append seqs 1 and 2 at second 0, 3 at second 1, 4 and 5 at second 3; source times 50, none, 20, 70, 60."""
    durability = Durability.EPHEMERAL if place is None else Durability.DISK
    await store.link.create_topic("t", Kind.LOG, TopicConfig(durability, cap_records=config.cap_records))
    for second, times in ((0, (50, 0)), (1, (20,)), (3, (70, 60))):
        store.clock.advance(START_MS / 1000 + second - store.clock.now_ms() / 1000)
        rows = [Record(source_ts_ns=time, tag=str(time), data=b"x") for time in times]
        await append(store.link, "t", Batch.from_rows(rows))
        await store.put()


async def by_commit(store: PlacedStore, second: float) -> int:
    result = await store.link.find_seq("t", commit_time_ms=START_MS + round(second * 1000))
    assert result.found == (result.seq <= result.head_seq)
    return result.seq


async def by_source(store: PlacedStore, time_ns: int) -> int:
    result = await store.link.find_seq("t", source_time_ns=time_ns)
    assert result.found == (result.seq <= result.head_seq)
    return result.seq


def tag(value: str) -> Match:
    return Match(MatchField.TAG, MatchKind.EQ, value.encode())


@pytest.mark.parametrize("place", EVERY)
async def test_commit_time_finds_the_first_record_at_or_after_it(place: LogPlace | None) -> None:
    async with placed_store(place or LogPlace.FRAMES) as store:
        await filled(store, place)
        times = (-9, 0, 0.001, 1, 1.001, 2.999, 3, 3.001)
        assert [await by_commit(store, second) for second in times] == [1, 1, 3, 3, 4, 4, 4, 6]


@pytest.mark.parametrize("place", EVERY)
async def test_source_time_finds_the_lowest_seq_in_any_order_of_times(place: LogPlace | None) -> None:
    async with placed_store(place or LogPlace.FRAMES) as store:
        await filled(store, place)
        assert [await by_source(store, time) for time in (-1, 0, 20, 50, 51, 60, 70, 71)] == [1, 1, 1, 1, 4, 4, 4, 6]


@pytest.mark.parametrize("place", EVERY)
async def test_deleted_and_evicted_records_are_not_returned(place: LogPlace | None) -> None:
    async with placed_store(place or LogPlace.FRAMES) as store:
        await filled(store, place, TopicConfig(cap_records=4))
        assert (await by_commit(store, 0), await by_source(store, 21)) == (2, 4)
        await store.link.delete_records("t", match=tag("20"))
        await store.link.delete_records("t", match=tag("70"))
        if place is not None:
            await store.put()
        assert [await by_commit(store, second) for second in (0, 0.5, 1, 3)] == [2, 5, 5, 5]
        assert [await by_source(store, time) for time in (1, 60, 61)] == [5, 5, 6]
        result = await store.link.find_seq("t", commit_time_ms=0)
        assert (result.earliest_seq, result.head_seq) == (2, 5)
        await store.link.delete_records("t", before_seq=99)
        assert await by_commit(store, 0) == 6


async def test_retention_is_enforced_before_the_search() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await store.link.create_topic("t", Kind.LOG, TopicConfig(ttl_ms=500))
        await append(store.link, "t", Batch.from_rows([Record(data=b"x")]))
        store.clock.advance(0.502)
        assert await by_commit(store, 0) == 2


async def test_only_pieces_that_may_match_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with placed_store(LogPlace.SEGMENTS) as store:
        await filled(store, LogPlace.SEGMENTS)
        await store.stop()
        await store.start()
        read = segment_reads(monkeypatch)
        assert (await by_commit(store, 3), len(read)) == (4, 1)
        assert (await by_source(store, 45), len(read)) == (1, 2)
        assert (await by_source(store, 99), len(read)) == (6, 2)


async def test_other_topics_are_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store, LogPlace.FRAMES)
        with pytest.raises(EpochMismatch):
            await store.link.find_seq("t", epoch=99, commit_time_ms=0)
        with pytest.raises(TopicNotFound):
            await store.link.find_seq("none", commit_time_ms=0)


async def test_search_through_memory_yields_the_event_loop() -> None:
    async with sim_store() as link:
        await log_topic(link, durability=Durability.EPHEMERAL)
        for number in range(300):
            await append(link, "log", rows(str(number)))
        turns, searching = 0, True

        def turn() -> None:
            nonlocal turns
            turns += 1
            if searching:
                asyncio.get_running_loop().call_soon(turn)

        asyncio.get_running_loop().call_soon(turn)
        assert not (await link.find_seq("log", source_time_ns=1)).found
        searching = False
        assert turns >= 4
