"""Fold reads: one snapshot an answer, read your writes, bounded scans, and topics deleted meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import FoldBehind, InvalidArgument, NotKv, ScanExpired, TooManyScans, TopicNotFound
from eddyline.core.model.source import SourceDefinition, SourceReport
from eddyline.store.fold.fold import VIEWS_MAX
from eddyline.store.log.append import AppendRequest
from eddyline.store.read.fold_reader import PAGE_ENTRIES
from eddyline.store.read.point_read import (
    ANSWER_BYTES_MAX,
    CACHED_BYTES_MAX,
    CACHED_KEYS_MAX,
    CHUNK_KEYS,
    KEYS_MAX,
    PointRead,
)
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.fold import SimFold
from tests.support.store.real import real_store, threaded
from tests.support.store.simulated import append, kv_topic, log_topic, puts, sim_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from eddyline.core.model.read import RangePage

MANY = PAGE_ENTRIES * 3


def pairs(count: int, value: str) -> list[tuple[str, str | None]]:
    return [(f"{i:06}", value) for i in range(count)]


def pairs_of(page: RangePage) -> list[tuple[bytes | None, bytes | None]]:
    return [(row.key, row.data) for row in page.batch.to_rows()] if page.batch is not None else []


async def test_min_seq_waits_until_the_fold_has_it() -> None:
    fold, clock = SimFold(0), ManualClock()
    async with sim_store(fold=fold, clock=clock) as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)
        fold.stall(3)
        ack = await link.stage(AppendRequest(topic="kv", batch=puts(("k", "v"))))
        reading = tasks.create_task(link.batch_get_entries("kv", [b"k"], min_seq=1))
        await settle()
        assert not reading.done()
        assert (await link.batch_get_entries("kv", [b"k"])).entries == (None,)
        await clock.pass_time(1)
        page = await reading
        assert ack.done()
        assert page.entries[0] is not None
        assert page.state.fold_seq == 1


async def test_min_seq_that_is_not_reached_in_30_seconds_is_fold_behind() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)

        async def behind() -> None:
            with pytest.raises(FoldBehind):
                await link.batch_get_entries("kv", [b"k"], min_seq=1)

        reading = tasks.create_task(behind())
        await settle()
        clock.advance(29.9)
        await settle()
        assert not reading.done()
        clock.advance(0.2)


async def test_log_has_no_fold_and_keys_are_bounded() -> None:
    async with sim_store() as link:
        await log_topic(link)
        await kv_topic(link)
        with pytest.raises(NotKv):
            await link.batch_get_entries("log", [b"k"])
        with pytest.raises(NotKv):
            await anext(link.range_entries("log"))
        for keys in ([], [b"k"] * (KEYS_MAX + 1), [b"k", bytes(1025)]):
            with pytest.raises(InvalidArgument) as refused:
                await link.batch_get_entries("kv", keys)
            assert refused.value.metadata["field"] == "keys"
        assert len((await link.batch_get_entries("kv", [b"k"] * KEYS_MAX)).entries) == KEYS_MAX


async def test_range_is_one_snapshot_while_writes_go_on() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(*pairs(MANY, "old")))
        async with aclosing(link.range_entries("kv")) as pages:
            entries = pairs_of(await anext(pages))
            await append(link, "kv", puts(*pairs(MANY, "new"), ("zzz", "new")))
            await append(link, "kv", puts(*((key, None) for key, _ in pairs(MANY, ""))))
            async for page in pages:
                assert page.state.fold_seq == MANY
                entries += pairs_of(page)
        assert entries == [(key.encode(), b"old") for key, _ in pairs(MANY, "")]
        now = [pairs_of(page) async for page in link.range_entries("kv")]
        assert now == [[(b"zzz", b"new")]]


async def test_range_and_log_join_without_hole_or_double() -> None:
    """A snapshot and the log after its seq together are complete: the watch relies on it."""
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)

        async def write() -> None:
            for i in range(60):
                await append(link, "kv", puts((f"{i % 7}", str(i)), (f"{(i + 3) % 7}", None)))

        writing = tasks.create_task(write())
        while not writing.done():
            state: dict[bytes | None, bytes | None] = {}
            async for page in link.range_entries("kv"):
                state |= dict(pairs_of(page))
                fold_seq = page.state.fold_seq
            expected: dict[bytes | None, bytes | None] = {}
            read = await link.read_records("kv", after_seq=0, limit=10_000)
            for item in read.items:
                for row in item.to_rows():  # type: ignore[union-attr]  # no gap is possible here
                    if row.seq <= fold_seq:
                        expected.pop(row.key, None)
                        if row.data is not None:
                            expected[row.key] = row.data
            assert state == expected
            assert read.head_seq >= fold_seq, "the log is never behind what a fold has shown"
            await settle(3)


async def test_scan_above_the_limit_is_refused_and_ended_scans_free_slots() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(*pairs(PAGE_ENTRIES + 1, "v")))
        scans = [link.range_entries("kv") for _ in range(VIEWS_MAX)]
        for scan in scans:
            await anext(scan)
        with pytest.raises(TooManyScans) as refused:
            await anext(link.range_entries("kv"))
        assert refused.value.metadata["retryAfterMs"] == "1000"
        await scans[0].aclose()
        assert len([page async for page in link.range_entries("kv")]) == 2
        for scan in scans[1:]:
            assert len([page async for page in scan]) == 1


async def test_scan_expires_after_300_seconds_and_closes_its_view() -> None:
    fold, clock = SimFold(0), ManualClock()
    async with sim_store(fold=fold, clock=clock) as link:
        await kv_topic(link)
        await append(link, "kv", puts(*pairs(MANY, "v")))
        scan = link.range_entries("kv")
        await anext(scan)
        clock.advance(300)
        await anext(scan)
        clock.advance(0.1)
        with pytest.raises(ScanExpired):
            await anext(scan)
        views = [fold.view(1) for _ in range(VIEWS_MAX)]
        for view in views:
            view.close()


@pytest.mark.parametrize("limit", [1, PAGE_ENTRIES, PAGE_ENTRIES + 1, MANY, MANY + 1])
async def test_limit_ends_a_range_exactly(limit: int) -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(*pairs(MANY, "v")))
        pages = [pairs_of(page) async for page in link.range_entries("kv", limit=limit)]
        assert sum(len(page) for page in pages) == min(limit, MANY)
        assert all(pages)


async def test_pages_are_bounded_in_bytes() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(*pairs(8, "x" * 100_000)))
        sizes = [len(pairs_of(page)) async for page in link.range_entries("kv")]
        assert sizes == [2, 2, 2, 2]


@pytest.mark.parametrize("turns", range(25))
@pytest.mark.parametrize("read", ["keys", "range"])
async def test_topic_deleted_during_a_fold_read_never_reads_as_empty(turns: int, read: str) -> None:
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)
        await append(link, "kv", puts(("k", "v")))
        tasks.create_task(link.delete_topic("kv"))
        await settle(turns)
        with suppress(TopicNotFound):
            if read == "keys":
                assert (await link.batch_get_entries("kv", [b"k"])).entries != (None,)
            else:
                assert [pairs_of(page) async for page in link.range_entries("kv")] == [[(b"k", b"v")]]


async def test_wait_for_a_deleted_topic_ends_at_once() -> None:
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)

        async def refused() -> None:
            with pytest.raises(TopicNotFound):
                await link.batch_get_entries("kv", [b"k"], min_seq=1)

        tasks.create_task(refused())
        await settle()
        await link.delete_topic("kv")


async def test_state_has_the_age_of_the_sources_report() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await kv_topic(link)
        state = (await link.batch_get_entries("kv", [b"k"])).state
        assert (state.source_state, state.staleness_ms) == ("", 0)
        await link.put_source(SourceDefinition("s", "kv", "b"))
        clock.advance(3)
        state = (await link.batch_get_entries("kv", [b"k"])).state
        assert (state.source_state, state.staleness_ms) == ("UNSPECIFIED", 3_000), "nothing is known of it yet"
        fence = (await link.acquire_lease("s", holder="h", lease_ms=0)).fence
        await link.renew_lease("s", fence=fence, report=SourceReport("LIVE"))
        clock.advance(2)
        state = (await link.batch_get_entries("kv", [b"k"])).state
        assert (state.source_state, state.staleness_ms) == ("LIVE", 2_000)


class CountingFold(SimFold):
    """A fold that counts the values read, and calls `at_read` at each read."""

    def __init__(self) -> None:
        super().__init__(0)
        self.read_counts: list[int] = []
        self.at_read: Callable[[], None] = lambda: None

    def get_stored(self, topic_id: int, keys: Sequence[bytes]) -> list[bytes | None]:
        self.read_counts.append(len(keys))
        self.at_read()
        return super().get_stored(topic_id, keys)


async def test_repeated_keys_are_read_once_and_counted_each_time() -> None:
    fold = CountingFold()
    async with sim_store(fold=fold) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "x" * 1_000_000), ("b", "y")))
        page = await link.batch_get_entries("kv", [b"a", b"b", b"c", b"a", b"b"])
        assert [entry and entry.seq for entry in page.entries] == [1, 2, None, 1, 2]
        with pytest.raises(InvalidArgument) as refused:
            await link.batch_get_entries("kv", [b"a"] * 4_000)
        assert refused.value.metadata["answerBytesMax"] == str(ANSWER_BYTES_MAX)
        assert fold.read_counts == [3, 1]


async def test_read_of_more_than_a_message_stops_when_the_message_is_full() -> None:
    fold = CountingFold()
    async with sim_store(fold=fold) as link:
        await kv_topic(link)
        for i in range(5 * CHUNK_KEYS):
            await append(link, "kv", puts((f"{i:02}", "x" * 1_000_000)))
        keys = [f"{i:02}".encode() for i in range(100)]
        with pytest.raises(InvalidArgument):
            await link.batch_get_entries("kv", keys)
        assert sum(fold.read_counts) <= ANSWER_BYTES_MAX // 1_000_000 + CHUNK_KEYS
        assert max(fold.read_counts) == CHUNK_KEYS


async def test_read_stops_at_its_next_chunk_after_its_caller_is_cancelled() -> None:
    fold = CountingFold()
    async with sim_store(fold=fold) as link:
        await kv_topic(link)
        keys = [f"{i}".encode() for i in range(10 * CHUNK_KEYS)]
        reading = PointRead(fold, 1, keys)
        fold.at_read = reading.cancel
        reading.run()
        assert fold.read_counts == [CHUNK_KEYS]
        fold.read_counts.clear()
        async with asyncio.TaskGroup() as tasks:
            calling = tasks.create_task(link.batch_get_entries("kv", keys))
            await settle(2)
            calling.cancel()
        await settle()
        assert fold.read_counts == []


async def test_few_live_keys_in_memory_are_read_without_the_folds_thread() -> None:
    fold = CountingFold()
    fold.is_cached = True
    async with sim_store(fold=fold, writes_here=True) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1"), ("b", "2"), ("large", "x" * CACHED_BYTES_MAX)))
        page = await link.batch_get_entries("kv", [b"b", b"a", b"b"])
        assert [entry and entry.seq for entry in page.entries] == [2, 1, 2]
        assert page.state.fold_seq == 3
        assert (await link.batch_get_entries("kv", [b"large"])).entries[0] is not None
        assert fold.read_counts == []
        await link.batch_get_entries("kv", [b"a", b"none"])
        await link.batch_get_entries("kv", [b"a", b"large"])
        await link.batch_get_entries("kv", [b"a"] * (CACHED_KEYS_MAX + 1))
        assert fold.read_counts == [2, 2, 1]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("turns", range(20))
async def test_entry_is_of_the_answers_point_while_the_fold_is_written(turns: int, cached: bool) -> None:
    fold = SimFold(0)
    fold.is_cached = cached
    async with sim_store(fold=fold) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("k", "old")))
        ack = await link.stage(AppendRequest(topic="kv", batch=puts(("k", "new"))))
        await settle(turns)
        page = await link.batch_get_entries("kv", [b"k"])
        entry = page.entries[0]
        assert entry is not None
        assert entry.seq == page.state.fold_seq
        assert (await link.read_records("kv", after_seq=0)).head_seq >= entry.seq
        await ack


async def test_entry_is_of_the_answers_point_with_real_threads(tmp_path: Path) -> None:
    async with real_store(tmp_path / "data", workers=threaded) as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)
        await append(link, "kv", puts(("k", "0")))

        async def write() -> None:
            for number in range(200):
                await append(link, "kv", puts(("k", str(number))))

        writing = tasks.create_task(write())
        while not writing.done():
            page = await link.batch_get_entries("kv", [b"k"])
            entry = page.entries[0]
            assert entry is not None
            assert entry.seq == page.state.fold_seq
            await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(20))
async def test_cancelled_scan_closes_its_view(turns: int) -> None:
    fold = SimFold(0)
    async with sim_store(fold=fold) as link:
        await kv_topic(link)
        await append(link, "kv", puts(*pairs(MANY, "v")))

        async def scan() -> None:
            async with aclosing(link.range_entries("kv")) as pages:
                async for _ in pages:
                    pass

        async with asyncio.TaskGroup() as tasks:
            scanning = tasks.create_task(scan())
            await settle(turns)
            scanning.cancel()
        await settle()
        assert not fold._views
