"""Log reads: every bound, every filter, waiting, and the errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CursorAhead, DataCorrupt, InvalidArgument, TopicNotFound
from eddyline.core.model.read import (
    EXAMINED_BYTES_MAX,
    EXAMINED_RECORDS_MAX,
    READ_BYTES_DEFAULT,
    READ_LIMIT_DEFAULT,
    RecordFilter,
)
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import RECORD_OVERHEAD_BYTES, Gap, GapReason, MetaEntry, Op, Record
from eddyline.core.records.size import row_bytes
from eddyline.store.read.log_reader import fitting
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import all_rows, append, kv_topic, log_topic, puts, rows, sim_store, values

if TYPE_CHECKING:
    from eddyline.core.model.read import ReadResult
    from eddyline.store.shard.shard import Shard

NOTHING = RecordFilter(tags=("none",))


def seqs(read: ReadResult) -> list[int]:
    """Return the seqs of a read's records."""
    return [row.seq for item in read.items if isinstance(item, Batch) for row in item.to_rows()]


async def filled(link: Shard, *sizes: int) -> None:
    """Make a LOG topic with one frame for each of `sizes`, of so many records."""
    await log_topic(link)
    number = 0
    for size in sizes:
        await append(link, "log", rows(*(str(number + i) for i in range(size))))
        number += size


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 6, 7, 10_000])
@pytest.mark.parametrize("after_seq", [0, 1, 3, 5, 6])
async def test_limit_counts_records_over_frames_and_within_them(limit: int, after_seq: int) -> None:
    async with sim_store() as link:
        await filled(link, 3, 1, 2)
        read = await link.read_records("log", after_seq=after_seq, limit=limit)
        expected = list(range(after_seq + 1, min(after_seq + limit, 6) + 1))
        assert seqs(read) == expected
        assert read.next_after_seq == (expected[-1] if expected else after_seq)
        assert len(read.items) <= 1, "neighbouring frames are one batch"


@pytest.mark.parametrize("max_bytes", [1, 33, 34, 65, 66, 67, 98, 99, 100, 198, 199])
async def test_max_bytes_counts_cells_and_32_a_record_and_allows_one_record(max_bytes: int) -> None:
    async with sim_store() as link:
        await filled(link, 3, 1, 2)
        read = await link.read_records("log", after_seq=0, max_bytes=max_bytes)
        assert seqs(read) == list(range(1, min(max(max_bytes // 33, 1), 6) + 1))
        assert read.next_after_seq == seqs(read)[-1]


async def test_one_record_larger_than_the_bound_is_returned_alone() -> None:
    async with sim_store() as link:
        await log_topic(link)
        await append(link, "log", rows("a", "b" * 5_000, "c"))
        read = await link.read_records("log", after_seq=1, max_bytes=100)
        assert (seqs(read), read.next_after_seq) == ([2], 2)
        read = await link.read_records("log", after_seq=0, max_bytes=100)
        assert (seqs(read), read.next_after_seq) == ([1], 1)


async def test_defaults_bound_a_read() -> None:
    async with sim_store() as link:
        await filled(link, 300, 300)
        assert len(seqs(await link.read_records("log", after_seq=10))) == READ_LIMIT_DEFAULT
        await log_topic(link, "big")
        for _ in range(4):
            await append(link, "big", rows("x" * (READ_BYTES_DEFAULT // 2)))
        assert seqs(await link.read_records("big", after_seq=0)) == [1]


async def test_bounds_out_of_range_are_refused() -> None:
    async with sim_store() as link:
        await log_topic(link)
        for bounds in ((-1, 0, 0), (10_001, 0, 0), (0, -1, 0), (0, (16 << 20) + 1, 0), (0, 0, -1), (0, 0, 30_001)):
            limit, max_bytes, wait_ms = bounds
            with pytest.raises(InvalidArgument):
                await link.read_records("log", after_seq=0, limit=limit, max_bytes=max_bytes, wait_ms=wait_ms)


async def test_records_examined_are_bounded_too() -> None:
    async with sim_store() as link:
        await log_topic(link)
        for _ in range(8):
            await append(link, "log", rows(*["v"] * 10_000))
        read = await link.read_records("log", after_seq=0, record_filter=NOTHING)
        assert (seqs(read), read.next_after_seq, read.caught_up) == ([], 70_000, False)
        assert EXAMINED_RECORDS_MAX < 70_000, "the first frame that reaches the bound is the last one"
        read = await link.read_records("log", after_seq=read.next_after_seq, record_filter=NOTHING)
        assert (read.next_after_seq, read.caught_up) == (80_000, True)


async def test_bytes_examined_are_bounded_too() -> None:
    async with sim_store() as link:
        await log_topic(link)
        for _ in range(20):
            await append(link, "log", rows("x" * 1_000_000))
        read = await link.read_records("log", after_seq=0, record_filter=NOTHING)
        assert read.next_after_seq == EXAMINED_BYTES_MAX // 1_000_000 + 1


async def test_filter_moves_the_cursor_up_to_the_first_record_that_did_not_fit() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1"), ("x", "2"), ("a", "3"), ("x", "4"), ("x", "5"), ("a", "6")))
        wanted = RecordFilter(key_prefixes=(b"a",))
        read = await link.read_records("kv", after_seq=0, limit=2, record_filter=wanted)
        assert (seqs(read), read.next_after_seq) == ([1, 3], 5)
        read = await link.read_records("kv", after_seq=5, limit=2, record_filter=wanted)
        assert (seqs(read), read.next_after_seq, read.caught_up) == ([6], 6, True)
        read = await link.read_records("kv", after_seq=3, record_filter=RecordFilter(key_prefixes=(b"none",)))
        assert (read.items, read.next_after_seq, read.caught_up) == ((), 6, True)


async def test_filtered_reads_in_steps_return_the_same_as_one_read() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        for start in range(0, 60, 5):
            await append(link, "kv", puts(*((f"{i % 3}{i}", str(i)) for i in range(start, start + 5))))
        wanted = RecordFilter(key_prefixes=(b"1",))
        for limit in (1, 2, 3, 7):
            read_seqs, after_seq = list[int](), 0
            while after_seq < 60:
                read = await link.read_records("kv", after_seq=after_seq, limit=limit, record_filter=wanted)
                assert len(seqs(read)) <= limit
                assert read.next_after_seq > after_seq
                read_seqs, after_seq = read_seqs + seqs(read), read.next_after_seq
            assert read_seqs == list(range(2, 61, 3))


async def test_wait_ends_with_a_record_or_with_its_time() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link, asyncio.TaskGroup() as tasks:
        await log_topic(link)
        waiting = tasks.create_task(link.read_records("log", after_seq=0, wait_ms=1_000))
        await settle()
        clock.advance(0.999)
        await settle()
        assert not waiting.done()
        clock.advance(0.001)
        assert (await waiting).items == ()
        waiting = tasks.create_task(link.read_records("log", after_seq=0, wait_ms=1_000))
        await settle()
        await append(link, "log", rows("a"))
        assert seqs(await waiting) == [1]
        assert seqs(await link.read_records("log", after_seq=0, wait_ms=1_000)) == [1], "not level: no wait"


async def test_wait_ends_when_the_topic_is_deleted() -> None:
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await log_topic(link)

        async def read() -> None:
            with pytest.raises(TopicNotFound):
                await link.read_records("log", after_seq=0, wait_ms=30_000)

        tasks.create_task(read())
        await settle()
        await link.delete_topic("log")


async def test_cursor_above_the_head_is_refused_and_of_another_epoch_gets_a_gap() -> None:
    async with sim_store() as link:
        epoch = await log_topic(link)
        await append(link, "log", rows("a"))
        for cursor_epoch in (0, epoch):
            with pytest.raises(CursorAhead) as ahead:
                await link.read_records("log", after_seq=2, epoch=cursor_epoch)
            assert ahead.value.head_seq == 1
        read = await link.read_records("log", after_seq=2, epoch=epoch + 7)
        assert read.items[0] == Gap(0, 0, GapReason.RECREATED, old_epoch=epoch + 7, new_epoch=epoch)
        assert (seqs(read), read.next_after_seq) == ([1], 1)


async def test_recreated_gap_comes_at_once_though_there_is_nothing_to_read() -> None:
    async with sim_store() as link:
        epoch = await log_topic(link)
        read = await link.read_records("log", after_seq=9, epoch=epoch + 1, wait_ms=30_000)
        assert (len(read.items), read.next_after_seq) == (1, 0)


async def test_flipped_byte_is_data_corrupt_and_the_frames_around_it_are_served() -> None:
    disk = SimFs()
    async with sim_store(disk, cache_bytes=0) as link:
        await filled(link, 2, 2, 2)
        location = link._table.get("log").index.entry(1).location
        file = disk.open(link._engine.committers[0].wal._directory / f"{location.file_number:016x}.wal")
        for at in (location.offset + 40, location.offset + location.length - 1):
            byte = file.pread(1, at)[0]
            file.pwritev([bytes([byte ^ 0x10])], at)
            with pytest.raises(DataCorrupt) as corrupt:
                await link.read_records("log", after_seq=0)
            assert corrupt.value.metadata["offset"] == str(location.offset)
            assert seqs(await link.read_records("log", after_seq=0, limit=2)) == [1, 2]
            assert seqs(await link.read_records("log", after_seq=4)) == [5, 6]
            file.pwritev([bytes([byte])], at)
        assert len(await all_rows(link, "log")) == 6


async def test_reads_without_cache_equal_reads_with_it() -> None:
    async with sim_store(cache_bytes=0) as link:
        await filled(link, 5, 1, 7)
        for after_seq in range(14):
            read = await link.read_records("log", after_seq=after_seq)
            assert seqs(read) == list(range(after_seq + 1, 14))
        assert values(await all_rows(link, "log")) == [str(i).encode() for i in range(13)]


def test_bytes_are_cells_and_overhead() -> None:
    full = Record(op=Op.PUT, key=b"kk", data=b"ddd", tag="t", node="nn", meta=(MetaEntry("m", b"1"),), version=b"\1\2")
    batch = Batch.from_rows([full, Record(), full._replace(data=b"")])
    meta_bytes = 2 + 1 + 4 + 1
    cells = 2 + 3 + 1 + 2 + meta_bytes + 2
    expected = [cells + RECORD_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, cells - 3 + RECORD_OVERHEAD_BYTES]
    assert row_bytes(batch).tolist() == expected
    assert batch.content_bytes == sum(expected)


@pytest.mark.parametrize(
    ("records_max", "bytes_max", "at_least_one", "expected"),
    [(9, 999, False, 3), (2, 999, False, 2), (9, 33, False, 1), (9, 32, False, 0), (9, 32, True, 1), (0, 0, False, 0)],
)
def test_fitting_keeps_both_bounds(records_max: int, bytes_max: int, at_least_one: bool, expected: int) -> None:
    assert fitting(rows("a", "b", "c"), records_max, bytes_max, at_least_one=at_least_one) == expected
    assert fitting(Batch.from_rows([]), records_max, bytes_max, at_least_one=at_least_one) == 0
