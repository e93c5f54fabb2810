"""Merges, rewrites, reclaims and bases: reads return the same before and after, with concurrent reads, deletes and
failures."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.background.scheduler import ROUND_S
from eddyline.store.compaction.planner import ROUND_BYTES
from eddyline.store.log_io.files import extent_of
from eddyline.store.storage.layout import Layout
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import all_rows, append, kv_topic, log_topic, puts, rows, settings, sim_store, values

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.core.runtime.fs import Fs
    from eddyline.store.log.topic import Topic
    from eddyline.store.shard.shard import Shard

A = Match(MatchField.KEY, MatchKind.EQ, b"a")


def topic_of(link: Shard, name: str) -> Topic:
    return link._table.get(name)


async def tidy(link: Shard) -> None:
    assert await link._parts.maintenance.round()


async def sealed(link: Shard, name: str, *texts: str) -> None:
    """Seal one segment of these records."""
    topic = topic_of(link, name)
    batch = rows(*texts) if topic.kind is Kind.LOG else puts(*((text[0], text) for text in texts))
    await append(link, name, batch)
    await link._parts.maintenance._sealer.seal(topic, topic.head_seq)


async def segmented(link: Shard, count: int, name: str = "log") -> None:
    for number in range(count):
        await sealed(link, name, f"a{number}", f"b{number}")


def small_bases(link: Shard) -> None:
    """Make bases due for any number of freed bytes."""
    link._parts.maintenance._planner._bases._freed_bytes_min = 1


def files_of(fs: Fs, topic_id: int) -> list[str]:
    directory: Path = Layout(settings().directory).topic_dir(topic_id)
    return fs.listdir(directory) if fs.exists(directory) else []


# merge -----------------------------------------------------------------------------------------------------------


async def test_small_neighbours_become_one_and_read_the_same() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = await log_topic(link)
        await segmented(link, 6)
        before = await all_rows(link, "log")
        await tidy(link)
        assert len(topic_of(link, "log").segments) == 1
        assert await all_rows(link, "log") == before
        assert len(files_of(fs, epoch)) == 1


async def test_a_reader_of_the_old_segments_ends_its_read() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = await log_topic(link)
        await segmented(link, 4)
        topic = topic_of(link, "log")
        extent = extent_of(topic)
        await tidy(link)
        assert len(files_of(fs, epoch)) == 5
        texts = [row.data for batch in link._parts.log.files.batches(extent) for row in batch.to_rows()]
        assert texts == values(await all_rows(link, "log"))
        extent.close()
        await tidy(link)
        assert len(files_of(fs, epoch)) == 1


async def test_deletes_while_a_merge_runs_stay_deleted() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await segmented(link, 4, "kv")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link._parts.maintenance.round())
            await asyncio.sleep(0)
            await link.delete_records("kv", match=A)
        assert {row.key for row in await all_rows(link, "kv")} == {b"b"}
        assert len(topic_of(link, "kv").segments) == 1


async def test_a_topic_deleted_while_a_merge_runs_leaves_nothing() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = await log_topic(link)
        await segmented(link, 4)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link._parts.maintenance.round())
            await asyncio.sleep(0)
            await link.delete_topic("log")
        await tidy(link)
        assert not fs.exists(Layout(settings().directory).topic_dir(epoch))


async def test_a_full_disk_leaves_the_old_set_and_no_temporary() -> None:
    for operation in ("open", "pwritev", "fsync", "pread", "rename", "fsync_dir"):
        fs, clock = FaultyFs(SimFs()), ManualClock()
        async with sim_store(fs, clock=clock) as link:
            epoch = await log_topic(link)
            await segmented(link, 4)
            before, names = await all_rows(link, "log"), files_of(fs, epoch)
            fs.next_fault(operation, error=errno.ENOSPC)
            assert not await link._parts.maintenance.round(), operation
            assert files_of(fs, epoch) == names, operation
            assert await all_rows(link, "log") == before
            clock.advance(1)
            await settle()
            await tidy(link)
            assert len(topic_of(link, "log").segments) == 1, operation
            assert await all_rows(link, "log") == before


async def test_cooldown_doubles_with_each_failure() -> None:
    fs, clock = FaultyFs(SimFs()), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await log_topic(link)
        await segmented(link, 4)
        fs.next_fault("fsync", error=errno.EIO, lasting=True)
        cooldown = link._parts.maintenance._cooldown
        topic = topic_of(link, "log")
        for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
            assert not await link._parts.maintenance.round()
            assert cooldown._pauses[topic].pause_s == pause_s
            clock._set_now_us(clock._now_us + pause_s * 1_000_000)
        fs.faults.clear()
        await tidy(link)
        assert topic not in cooldown._pauses


async def test_one_damaged_topic_does_not_stop_the_others() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        for name in ("log", "other"):
            await log_topic(link, name)
            await segmented(link, 4, name)
        path = next(iter(topic_of(link, "log").segments)).path
        file = fs.open(path)
        file.pwritev([b"\xff" * 64], 1200)
        assert not await link._parts.maintenance.round()
        await tidy(link)
        assert len(topic_of(link, "log").segments) == 4
        assert len(topic_of(link, "other").segments) == 1
        assert link.status().corrupt_count == 1


# rewrite and reclaim ---------------------------------------------------------------------------------------------


async def test_a_segment_half_deleted_is_written_again() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await sealed(link, "kv", "a1", "b1", "a2", "b2")
        await link.delete_records("kv", match=A)
        await tidy(link)
        (segment,) = topic_of(link, "kv").segments
        assert segment.summary.rows == 2
        assert values(await all_rows(link, "kv")) == [b"b1", b"b2"]
        await tidy(link)
        assert list(topic_of(link, "kv").segments) == [segment]


async def test_a_segment_less_than_half_deleted_stays() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await sealed(link, "kv", "a1", "b1", "c1")
        await link.delete_records("kv", match=A)
        await tidy(link)
        (segment,) = topic_of(link, "kv").segments
        assert segment.summary.rows == 3


async def test_a_segment_without_live_rows_is_removed() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = await kv_topic(link)
        await sealed(link, "kv", "a1", "a2")
        await link.delete_records("kv", match=A)
        await tidy(link)
        assert files_of(fs, epoch) == []
        assert await all_rows(link, "kv") == []


async def test_evicted_segments_are_removed_whole_and_not_rewritten_before() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = (await link.create_topic("log", Kind.LOG, TopicConfig(cap_records=3))).epoch
        await segmented(link, 3)
        first = topic_of(link, "log").segments.first_seq
        await link.get_topic("log")
        await tidy(link)
        assert (first, topic_of(link, "log").segments.first_seq) == (1, 3)
        assert len(files_of(fs, epoch)) == 2
        result = await link.read_records("log", after_seq=3)
        assert [item.count for item in result.items if isinstance(item, Batch)] == [3]


# bases -----------------------------------------------------------------------------------------------------------


async def test_a_kv_topic_keeps_its_log_until_a_base_covers_it() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = await kv_topic(link)
        await segmented(link, 3, "kv")
        await link.delete_records("kv", before_seq=5)
        await tidy(link)
        assert len(files_of(fs, epoch)) == 3
        small_bases(link)
        await tidy(link)
        topic = topic_of(link, "kv")
        assert topic.base is not None
        assert (topic.base.seq, topic.base.rows) == (6, 2)
        assert sorted(name.split("-")[0] for name in files_of(fs, epoch)) == ["base", "seg"]
        assert [row.seq for row in await all_rows(link, "kv")] == [5, 6]


async def test_a_base_is_made_again_when_it_frees_as_much_as_the_last_one_has() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        epoch = await kv_topic(link)
        small_bases(link)
        topic = topic_of(link, "kv")
        await segmented(link, 2, "kv")
        await link.delete_records("kv", before_seq=3)
        await tidy(link)
        first = topic.base
        assert first is not None
        await segmented(link, 3, "kv")
        await link.delete_records("kv", before_seq=100)
        await tidy(link)
        assert topic.base is not None
        assert (topic.base.seq, topic.base.generation > first.generation) == (10, True)
        assert [name for name in files_of(fs, epoch) if name.startswith("base")] == [
            f"base-{10:016x}-{topic.base.generation:08x}.arrow"
        ]


async def test_a_topic_deleted_while_its_base_is_made_leaves_nothing() -> None:
    for turns in range(40):
        fs = SimFs()
        async with sim_store(fs) as link:
            small_bases(link)
            await link.create_topic("kv", Kind.KV, TopicConfig(cap_records=1))
            topic = topic_of(link, "kv")
            await sealed(link, "kv", "a1")
            await sealed(link, "kv", "b1")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(link._parts.maintenance.round())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await link.delete_topic("kv")
            await link._parts.checkpointer.run()
            await tidy(link)
            assert not fs.exists(Layout(settings().directory).topic_dir(topic.id))
        async with sim_store(fs) as link:
            assert not link._table.all()


async def test_sealing_skips_a_topic_that_is_being_deleted() -> None:
    async with sim_store() as link:
        await log_topic(link)
        await append(link, "log", rows("a", "b"))
        topic = topic_of(link, "log")
        (committer,) = link._engine.committers
        async with asyncio.TaskGroup() as tasks, committer.held():
            tasks.create_task(link.delete_topic("log"))
            await settle()
            await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
            assert topic.closing
            assert not topic.deleted
        assert topic.deleted
        assert not len(topic.segments)


async def test_a_base_of_an_empty_fold_has_no_file() -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        epoch = await kv_topic(link)
        small_bases(link)
        await append(link, "kv", puts(("a", "1"), ("a", None)))
        await link._parts.maintenance._sealer.seal(topic_of(link, "kv"), 2)
        await link.delete_records("kv", before_seq=3)
        await tidy(link)
        base = topic_of(link, "kv").base
        assert base is not None
        assert (base.seq, base.rows, base.file_bytes) == (2, 0, 0)
        assert files_of(fs, epoch) == []
    async with sim_store(fs, fold.kill()) as link:
        assert topic_of(link, "kv").base == base
        assert (await link.get_topic("kv")).head_seq == 2


async def test_a_base_survives_restarts_and_the_fold_reads_the_same() -> None:
    fs, fold = SimFs(), SimFold(0)
    async with sim_store(fs, fold) as link:
        await kv_topic(link)
        small_bases(link)
        await segmented(link, 3, "kv")
        await link.delete_records("kv", before_seq=7)
        await tidy(link)
        base = topic_of(link, "kv").base
    async with sim_store(fs, fold.kill()) as link:
        assert topic_of(link, "kv").base == base
        page = await link.batch_get_entries("kv", [b"a", b"b"])
        assert [entry.data for entry in page.entries if entry is not None] == [b"a2", b"b2"]
        await append(link, "kv", puts(("c", "1")))
        assert [row.seq for row in await all_rows(link, "kv")] == [7]


# the order of the jobs -------------------------------------------------------------------------------------------


async def test_a_read_only_store_waits_though_work_is_left() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        maintenance = link._parts.maintenance
        await log_topic(link)
        await segmented(link, 4)
        maintenance._planner._read_bytes = ROUND_BYTES
        link._engine.gate.failed_reason = "FOLD_FAILED"
        rounds = 0
        one_round = maintenance.round

        async def counted() -> bool:
            nonlocal rounds
            rounds += 1
            return await one_round()

        maintenance.round = counted  # type: ignore[method-assign]
        await clock.pass_time(1)
        assert rounds <= 1 / ROUND_S
