"""Key history: all revisions in order, with gaps for lost ones, under concurrent changes of the log."""

from __future__ import annotations

import pytest

from eddyline.core.errors import CursorAhead, EpochMismatch, NotKv, TopicNotFound
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, GapReason
from eddyline.store.read import key_history as history
from tests.support.storage.segments import segment_reads
from tests.support.store.simulated import LOG_PLACES, LogPlace, PlacedStore, append, placed_store, puts

PLAIN = TopicConfig()


async def filled(store: PlacedStore, config: TopicConfig = PLAIN) -> None:
    """Append k at 1, 3, 4 (a delete) and 6; other keys between."""
    await store.link.create_topic("t", Kind.KV, config)
    for pairs in ([("k", "1"), ("l", "1")], [("k", "2"), ("k", None)], [("m", "1")], [("k", "3")]):
        await append(store.link, "t", puts(*pairs))
        await store.put()


async def events(store: PlacedStore, key: bytes = b"k", after_seq: int = 0, limit: int = 0) -> list[int | Gap]:
    items: list[int | Gap] = []
    async for item in store.link.key_history("t", key, after_seq=after_seq, limit=limit):
        items += item.seq_list() if isinstance(item, Batch) else [item]
    return items


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_revisions_come_in_order_within_their_bounds(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store)
        assert await events(store) == [1, 3, 4, 6]
        assert await events(store, after_seq=3) == [4, 6]
        assert [await events(store, limit=limit) for limit in (1, 3, 4, 5)] == [
            [1],
            [1, 3, 4],
            [1, 3, 4, 6],
            [1, 3, 4, 6],
        ]
        assert await events(store, after_seq=1, limit=2) == [3, 4]
        assert await events(store, after_seq=6) == []
        assert await events(store, b"none") == []


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_evicted_revisions_are_a_gap_and_deleted_ones_are_not(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await filled(store, TopicConfig(cap_records=4))
        gap = Gap(1, 2, GapReason.CAP)
        assert await events(store) == [gap, 3, 4, 6]
        assert await events(store, after_seq=1) == [gap._replace(first_seq=2), 3, 4, 6]
        assert await events(store, limit=1) == [gap, 3]
        await store.link.delete_records("t", before_seq=5, match=Match(MatchField.KEY, MatchKind.EQ, b"k"))
        await store.put()
        assert await events(store) == [gap, 6]
        await store.link.delete_records("t", before_seq=99)
        assert await events(store) == [gap]
        assert await events(store, after_seq=2) == []


@pytest.mark.parametrize("seals", [False, True])
async def test_lost_seqs_are_a_gap_in_their_place(seals: bool) -> None:
    async with placed_store(LogPlace.KILLED) as store:
        await filled(store)
        await store.stop(kill=True)
        store.fs.boots += 1
        await store.start()
        await append(store.link, "t", puts(("k", "4")))
        if seals:
            await store.seal()
        *before, gap, last = await events(store)
        head_seq = (await store.link.get_topic("t")).head_seq
        assert isinstance(gap, Gap)
        assert (before, gap.reason, last) == ([1, 3, 4, 6], GapReason.UNSYNCED, head_seq)
        assert await events(store, b"none") == [gap]


async def test_segments_without_the_key_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with placed_store(LogPlace.SEGMENTS) as store:
        await store.link.create_topic("t", Kind.KV, PLAIN)
        for pairs in ([("k", "1"), ("l", "1")], [("m", "1")], [("k", "2")]):  # too few segments to be merged
            await append(store.link, "t", puts(*pairs))
            await store.put()
        await store.stop()
        await store.start()
        read = segment_reads(monkeypatch)
        assert (await events(store, b"m"), len(read)) == ([3], 1)
        assert (await events(store), len(read)) == ([1, 4], 3)


async def test_history_ends_at_the_head_of_its_start_and_survives_concurrent_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "ANSWER_PIECES", 1)
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store, TopicConfig(cap_records=6))
        items: list[int | Gap] = []
        async for item in store.link.key_history("t", b"k"):
            items += item.seq_list() if isinstance(item, Batch) else [item]
            if items == [1]:
                await store.seal()
                await append(store.link, "t", puts(("k", "4"), ("k", "5"), ("k", "6")))
                await store.link.get_topic("t")
        assert items == [1, Gap(3, 3, GapReason.CAP), 4, 6]


async def test_history_of_a_topic_deleted_meanwhile_ends_as_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ANSWER_PIECES", 1)
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        revisions = store.link.key_history("t", b"k")
        await anext(revisions)
        await store.link.delete_topic("t")
        with pytest.raises(TopicNotFound):
            await anext(revisions)


async def test_invalid_histories_are_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await filled(store)
        await store.link.create_topic("log", Kind.LOG, TopicConfig())
        with pytest.raises(CursorAhead):
            await events(store, after_seq=7)
        with pytest.raises(NotKv):
            await anext(store.link.key_history("log", b"k"))
        with pytest.raises(EpochMismatch):
            store.link.key_history("t", b"k", epoch=99)
