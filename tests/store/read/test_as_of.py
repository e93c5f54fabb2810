"""Point-in-time reads of keys, by seq and time: from fold, log and base, with the log in every place."""

from __future__ import annotations

import pytest

from eddyline.core.errors import CursorAhead, HistoryGone, NotKv, TimeNotReached, TopicNotFound
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from tests.support.manual_clock import START_MS
from tests.support.store.simulated import LOG_PLACES, LogPlace, PlacedStore, append, log_topic, placed_store, puts

K = Match(MatchField.KEY, MatchKind.EQ, b"k")
PLAIN = TopicConfig()


async def filled(store: PlacedStore, config: TopicConfig = PLAIN) -> None:
    """Fill topic: k is "1" at 1, "2" at 3, deleted at 4, "3" at 6; two records a second, from 0 on."""
    await store.link.create_topic("t", Kind.KV, config)
    for pairs in ([("k", "1"), ("l", "1")], [("k", "2"), ("k", None)], [("m", "1"), ("k", "3")]):
        await append(store.link, "t", puts(*pairs))
        await store.put()
        store.clock.advance(1)


async def at(store: PlacedStore, seq: int, key: bytes = b"k") -> bytes | None:
    """Return the value as of the record of `seq`."""
    page = await store.link.entry_at("t", key, at_seq=seq)
    assert page.state.fold_seq == seq
    return page.entries[0].data if page.entries[0] is not None else None


async def at_second(store: PlacedStore, second: float) -> tuple[int, bytes | None]:
    """Return the seq of the point and the value."""
    page = await store.link.entry_at("t", b"k", at_time_ms=START_MS + round(second * 1000))
    return page.state.fold_seq, page.entries[0].data if page.entries[0] is not None else None


async def gone_until(store: PlacedStore, seq: int) -> int:
    """Check that the key is not readable at `seq`. Returns the earliest readable seq."""
    with pytest.raises(HistoryGone) as gone:
        await at(store, seq)
    return gone.value.earliest_seq


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_value_is_that_of_the_last_record_at_or_below_the_point(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        assert [await at(store, seq) for seq in range(7)] == [None, b"1", b"1", b"2", None, None, b"3"]
        assert [await at(store, seq, b"m") for seq in (0, 4, 5, 6)] == [None, None, b"1", b"1"]
        assert await at(store, 6, b"none") is None


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_time_selects_the_last_record_committed_by_then(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        seconds = (-1, -0.001, 0, 0.999, 1, 1.999, 2, 2.999)
        points = [(0, None), (0, None), (2, b"1"), (2, b"1"), (4, None), (4, None), (6, b"3"), (6, b"3")]
        assert [await at_second(store, second) for second in seconds] == points


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_time_that_is_not_past_is_refused(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        for second in (3, 4):
            with pytest.raises(TimeNotReached) as early:
                await at_second(store, second)
            assert early.value.now_ms == store.clock.now_ms()
        await store.clock.pass_time(0.001)
        assert await at_second(store, 3) == (6, b"3")


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_evicted_revisions_are_readable_until_a_base_covers_them(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store, TopicConfig(cap_records=2))
        assert [await at(store, seq) for seq in (1, 3, 4, 6)] == [b"1", b"2", None, b"3"]
        await store.make_base("t")
        await store.put()
        assert [await gone_until(store, seq) for seq in (0, 1, 5)] == [6, 6, 6]
        assert (await at(store, 6), await at(store, 2, b"l"), await at(store, 6, b"l")) == (b"3", b"1", b"1")
        with pytest.raises(HistoryGone) as gone:
            await at_second(store, 1)
        assert gone.value.earliest_seq == 6
        await append(store.link, "t", puts(("k", "4"), ("l", None)))
        await append(store.link, "t", puts(("n", "1")))
        await store.put()
        assert [await at(store, seq) for seq in (6, 7, 9)] == [b"3", b"4", b"4"]
        assert [await at(store, seq, b"l") for seq in (6, 7, 8)] == [b"1", b"1", None]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_erased_key_is_not_live_at_any_point(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store, TopicConfig(cap_records=2))
        await store.make_base("t")
        await append(store.link, "t", puts(("k", "4")))
        await store.link.delete_records("t", match=K)
        await append(store.link, "t", puts(("k", "5")))
        await store.put()
        assert [await at(store, seq) for seq in (6, 7, 8)] == [None, None, b"5"]
        assert await at(store, 6, b"m") == b"1"


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_erased_revisions_below_the_floors_are_not_returned(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store, TopicConfig(cap_records=2))
        await store.link.delete_records("t", match=K)
        await store.put()
        assert [await at(store, seq) for seq in range(7)] == [None] * 7


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_trimmed_revisions_are_gone_unless_the_fold_has_them(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        await store.link.delete_records("t", before_seq=4)
        await store.put()
        assert [await gone_until(store, seq) for seq in (1, 2, 3)] == [4, 4, 4]
        assert [await at(store, seq) for seq in (4, 5, 6)] == [None, None, b"3"]
        assert [await at(store, seq, b"l") for seq in (2, 6)] == [b"1", b"1"]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_rebuilt_fold_has_no_erased_key(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store, TopicConfig(cap_records=2))
        await store.make_base("t")
        await append(store.link, "t", puts(("k", "4")))
        await store.link.delete_records("t", match=K)
        await store.stop()
        store.fold.delete_topic(1)
        await store.start()
        page = await store.link.batch_get_entries("t", [b"k", b"l", b"m"])
        assert [entry and entry.data for entry in page.entries] == [None, b"1", b"1"]


async def test_invalid_points_are_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await log_topic(store.link)
        with pytest.raises(CursorAhead):
            await at(store, 7)
        with pytest.raises(NotKv):
            await store.link.entry_at("log", b"k", at_seq=0)
        with pytest.raises(TopicNotFound):
            await store.link.entry_at("none", b"k", at_time_ms=0)
