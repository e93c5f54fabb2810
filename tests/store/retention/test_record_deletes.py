"""Record deletes end to end: removed records, counts, restarts, with the log in every place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import EpochMismatch, InvalidArgument, StalePosition, TopicNotFound
from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, GapReason, Record
from eddyline.store.log.append import AppendRequest
from tests.support.models.history import read_items
from tests.support.storage.segments import segment_reads
from tests.support.store.simulated import LOG_PLACES, LogPlace, PlacedStore, append, placed_store, puts

if TYPE_CHECKING:
    from collections.abc import Sequence


BOTH_ENDS = [LogPlace.FRAMES, LogPlace.SEGMENTS, LogPlace.KILLED]


def tagged(*tags: str | None) -> Batch:
    """Make LOG records with these tags."""
    return Batch.from_rows([Record(tag=tag, key=None if tag is None else b"k" + tag.encode()) for tag in tags])


def tag(value: str, kind: MatchKind = MatchKind.EQ) -> Match:
    return Match(MatchField.TAG, kind, value.encode())


def key(value: bytes, kind: MatchKind = MatchKind.EQ) -> Match:
    return Match(MatchField.KEY, kind, value)


async def log_of(store: PlacedStore, *appends: Sequence[str | None], config: TopicConfig | None = None) -> None:
    """Make a LOG topic with these appends, each moved to its place."""
    await store.link.create_topic("t", Kind.LOG, config or TopicConfig())
    for tags in appends:
        await append(store.link, "t", tagged(*tags))
        await store.put()


async def kv_of(store: PlacedStore, *appends: Sequence[tuple[str, str | None]]) -> None:
    """Make a KV topic with these appends, each moved to its place."""
    await store.link.create_topic("t", Kind.KV, TopicConfig())
    for pairs in appends:
        await append(store.link, "t", puts(*pairs))
        await store.put()


async def seqs(store: PlacedStore, after_seq: int = 0) -> list[int]:
    return [item.seq for item in await read_items(store.link, "t", after_seq) if isinstance(item, Record)]


async def live(store: PlacedStore, *keys: bytes) -> list[bytes | None]:
    page = await store.link.batch_get_entries("t", keys)
    return [None if entry is None else entry.data for entry in page.entries]


@pytest.mark.parametrize("place", LOG_PLACES)
@pytest.mark.parametrize(
    ("before_seq", "match", "left", "count"),
    [
        (3, None, [3, 4, 5, 6], 2),
        (99, None, [], 6),
        (0, tag("a"), [2, 3, 5, 6], 2),
        (0, tag("a", MatchKind.PREFIX), [3, 5, 6], 3),
        (4, tag("a", MatchKind.PREFIX), [3, 4, 5, 6], 2),
        (0, tag("", MatchKind.PREFIX), [5], 5),
        (0, tag("none"), [1, 2, 3, 4, 5, 6], 0),
        (0, key(b"ka"), [2, 3, 5, 6], 2),
        (0, key(b"ka", MatchKind.PREFIX), [3, 5, 6], 3),
        (0, key(b"kz", MatchKind.PREFIX), [1, 2, 3, 4, 5, 6], 0),
    ],
)
async def test_delete_removes_the_matching_records_once(
    place: LogPlace, before_seq: int, match: Match | None, left: list[int], count: int
) -> None:
    async with placed_store(place) as store:
        await log_of(store, ["a", "ab"], ["b"], ["a", None, "b"])
        info = await store.link.get_topic("t")
        result = await store.link.delete_records("t", before_seq=before_seq, match=match)
        assert (result.deleted_count, result.head_seq, result.epoch) == (count, 6, info.epoch)
        assert result.earliest_seq == (left[0] if left else 7)
        await store.put()
        assert await seqs(store) == left
        info = await store.link.get_topic("t")
        assert (info.record_count, info.earliest_seq) == (len(left), result.earliest_seq)
        assert (info.record_bytes == 0) == (not left)
        again = await store.link.delete_records("t", before_seq=before_seq, match=match)
        assert again.deleted_count == 0


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_delete_counts_bytes_so_that_none_are_left(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await log_of(store, ["a", "bb"], ["a"], ["ccc", "a"])
        for value in ("a", "bb", "ccc"):
            await store.link.delete_records("t", match=tag(value))
            await store.put()
        info = await store.link.get_topic("t")
        assert (info.record_count, info.record_bytes, info.earliest_seq, info.evict_floor) == (0, 0, 6, 0)


@pytest.mark.parametrize("place", LOG_PLACES)
@pytest.mark.parametrize("kind", list(MatchKind))
async def test_append_after_a_delete_of_its_tag_stays(place: LogPlace, kind: MatchKind) -> None:
    async with placed_store(place) as store:
        await log_of(store, ["a"], ["b"])
        await store.link.delete_records("t", match=tag("a", kind))
        await append(store.link, "t", tagged("a", "a"))
        for _ in range(2):
            await store.put()
            assert await seqs(store) == [2, 3, 4]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_write_after_a_delete_of_its_key_stays(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await kv_of(store, [("k", "1"), ("l", "1")], [("k", "2")])
        assert (await store.link.delete_records("t", match=key(b"k"))).deleted_count == 2
        assert await live(store, b"k", b"l") == [None, b"1"]
        await store.put()
        assert await live(store, b"k", b"l") == [None, b"1"]
        await append(store.link, "t", puts(("k", "3")))
        for _ in range(2):
            await store.put()
            assert await live(store, b"k", b"l") == [b"3", b"1"]
            assert await seqs(store) == [2, 4]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_key_match_with_a_bound_leaves_what_was_written_above_it(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await kv_of(store, [("k", "1"), ("k", "2")], [("l", "1"), ("m", None)])
        result = await store.link.delete_records("t", before_seq=2, match=key(b"", MatchKind.PREFIX))
        await store.put()
        assert (result.deleted_count, await seqs(store)) == (1, [2, 3, 4])
        assert await live(store, b"k", b"l") == [b"2", b"1"]
        await store.link.delete_records("t", before_seq=4, match=key(b"", MatchKind.PREFIX))
        await store.put()
        assert (await live(store, b"k", b"l"), await seqs(store)) == ([None, None], [4])


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_bound_alone_trims_the_log_of_a_kv_topic_and_leaves_its_fold(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await kv_of(store, [("k", "1"), ("l", "1")], [("m", "1")])
        assert (await store.link.delete_records("t", before_seq=3)).deleted_count == 2
        await store.put()
        assert (await live(store, b"k", b"l"), await seqs(store)) == ([b"1", b"1"], [3])
        erased = await store.link.delete_records("t", match=key(b"k"))
        assert erased.deleted_count == 0, "its record had gone before, its entry goes now"
        await store.put()
        assert await live(store, b"k", b"l") == [None, b"1"]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_delete_counts_after_retention_is_enforced(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await log_of(store, ["a", "b"], ["a", "b"], ["a"], config=TopicConfig(cap_records=3))
        assert (await store.link.delete_records("t", match=tag("a"))).deleted_count == 2
        await store.put()
        kept = Record(4, store.clock.now_ms(), tag="b", key=b"kb")
        assert await read_items(store.link, "t") == [Gap(1, 2, GapReason.CAP), kept]


@pytest.mark.parametrize("place", BOTH_ENDS)
async def test_many_rows_are_several_deletes_each_complete(place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    async with placed_store(place) as store:
        await kv_of(store, *[[("k", "1"), ("l", "2")]] * 5)
        monkeypatch.setattr(store.link._parts.history.deletes, "_frame_rows_max", 2)
        assert (await store.link.delete_records("t", match=key(b"", MatchKind.PREFIX))).deleted_count == 10
        await store.put()
        assert (await seqs(store), await live(store, b"k", b"l")) == ([], [None, None])


async def test_segments_that_cannot_hold_the_match_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with placed_store(LogPlace.SEGMENTS) as store:
        await log_of(store, ["a", "b"], ["c"], ["b"])
        await store.stop()
        await store.start()  # nothing is in the cache
        read = segment_reads(monkeypatch)
        assert (await store.link.delete_records("t", match=tag("c"))).deleted_count == 1
        assert len(read) == 1
        assert (await store.link.delete_records("t", match=key(b"kb"))).deleted_count == 2
        assert len(read) == 3
        assert (await store.link.delete_records("t", before_seq=3)).deleted_count == 1
        assert len(read) == 3, "what was just read is in the cache"


async def test_append_in_flight_is_above_the_bound() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await log_of(store, ["a"])
        waiting = await store.link.stage(AppendRequest(topic="t", batch=tagged("a")))
        result = await store.link.delete_records("t", match=tag("a"))
        await waiting
        assert (result.deleted_count, result.head_seq) == (1, 1)
        assert await seqs(store) == [2]


@pytest.mark.parametrize("place", LOG_PLACES)
async def test_concurrent_deletes_count_each_record_once(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await log_of(store, ["a", "b"] * 10, ["a", "b"] * 10)
        deletes = [
            store.link.delete_records("t", match=tag("a")),
            store.link.delete_records("t", match=tag("", MatchKind.PREFIX)),
            store.link.delete_records("t", before_seq=20),
            store.link.delete_records("t", match=key(b"ka")),
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in deletes]
        assert sum(task.result().deleted_count for task in tasks) == 40
        info = await store.link.get_topic("t")
        assert (info.record_count, info.record_bytes) == (0, 0)


@pytest.mark.parametrize("place", [LogPlace.FRAMES, LogPlace.SEGMENTS])
async def test_log_that_is_sealed_or_merged_during_a_delete_is_deleted_completely(place: LogPlace) -> None:
    async with placed_store(place) as store:
        await log_of(store, *[["a", "b"]] * 8, config=TopicConfig(cap_records=100))

        async def disturb() -> None:
            for _ in range(3):
                await append(store.link, "t", tagged("a", "a"))
                await store.seal()
                assert {2, 4, 6} <= set(await seqs(store))

        async with asyncio.TaskGroup() as group:
            group.create_task(disturb())
            deleting = group.create_task(store.link.delete_records("t", match=tag("a")))
        assert deleting.result().deleted_count == 8
        assert await seqs(store) == [*range(2, 17, 2), *range(17, 23)]


async def test_gap_records_survive_a_match_and_are_removed_by_a_bound() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await kv_of(store, [("k", "1")])
        # power loss: the gap takes a seq of its own
        store.fs.crashed = True
        await store.stop(kill=True)
        store.fs.boots += 1
        await store.start()
        head_seq = (await store.link.get_topic("t")).head_seq
        assert head_seq > 1
        await store.link.delete_records("t", match=key(b"", MatchKind.PREFIX))
        (gap,) = await read_items(store.link, "t")
        assert isinstance(gap, Gap)
        assert (await store.link.delete_records("t", before_seq=head_seq + 1)).deleted_count == 0
        assert await read_items(store.link, "t") == []


async def test_ephemeral_records_are_deleted_in_memory() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await log_of(store, ["a", "b"], ["a"], ["b", "a"], config=TopicConfig(Durability.EPHEMERAL))
        gate = store.link._engine.gate
        before = gate.memory_bytes
        assert (await store.link.delete_records("t", match=tag("a"))).deleted_count == 3
        assert await seqs(store) == [2, 4]
        info = await store.link.get_topic("t")
        assert (info.record_bytes, gate.memory_bytes) == (before * 2 // 5, before * 2 // 5)
        assert (await store.link.delete_records("t", before_seq=9)).deleted_count == 2
        assert (gate.memory_bytes, store.topic("t").erase_due_ms) == (0, 0)


async def test_records_of_a_source_may_be_deleted() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await store.link.create_topic("t", Kind.KV, TopicConfig())
        await store.link.put_source(SourceDefinition("s", "t", "bucket"))
        lease = await store.link.acquire_lease("s", holder="h", lease_ms=5_000)
        await store.link.apply_batch("s", fence=lease.fence, previous=b"", new=b"1", batch=puts(("k", "1")))
        assert (await store.link.delete_records("t", match=key(b"k"))).deleted_count == 1
        assert await live(store, b"k") == [None]


async def test_erased_key_is_not_restored_when_its_source_repeats_it() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await store.link.create_topic("t", Kind.KV, TopicConfig())
        await store.link.put_source(SourceDefinition("s", "t", "bucket"))
        lease = await store.link.acquire_lease("s", holder="h", lease_ms=5_000)
        for previous, new, value in ((b"", b"1", "1"), (b"1", b"2", "2")):
            await store.link.apply_batch("s", fence=lease.fence, previous=previous, new=new, batch=puts(("k", value)))
        assert (await store.link.delete_records("t", match=key(b"k"))).deleted_count == 2
        again = await store.link.apply_batch("s", fence=lease.fence, previous=b"1", new=b"2", batch=puts(("k", "2")))
        assert again.deduplicated
        with pytest.raises(StalePosition):
            await store.link.apply_batch("s", fence=lease.fence, previous=b"", new=b"1", batch=puts(("k", "1")))
        assert await live(store, b"k") == [None]


async def test_erased_key_is_not_expected_any_more() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await kv_of(store, [("k", "1")])
        await store.link.delete_records("t", match=key(b"k"))
        result = await append(store.link, "t", puts(("k", "2")), expected_versions=((b"k", b""),))
        assert result.first_seq == 2


async def test_invalid_delete_is_refused() -> None:
    async with placed_store(LogPlace.FRAMES) as store:
        await kv_of(store, [("k", "1")])
        with pytest.raises(InvalidArgument):
            await store.link.delete_records("t", match=tag("a"))
        with pytest.raises(InvalidArgument):
            await store.link.delete_records("t")
        with pytest.raises(EpochMismatch):
            await store.link.delete_records("t", before_seq=2, epoch=99)
        with pytest.raises(TopicNotFound):
            await store.link.delete_records("none", before_seq=2)


async def test_delete_sets_when_its_payloads_are_due_and_replay_sets_the_same() -> None:
    async with placed_store(LogPlace.KILLED, erase_within_h=2) as store:
        await kv_of(store, [("k", "1")])
        await store.link.delete_records("t", match=key(b"k"))
        due_ms = store.topic("t").erase_due_ms
        assert due_ms == store.clock.now_ms() + 2 * 3_600_000
        store.clock.advance(60)
        await store.put()
        assert store.topic("t").erase_due_ms == due_ms
