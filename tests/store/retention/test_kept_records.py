"""Records that retention must keep, and those it must evict before reads, deletes and checkpoints."""

from __future__ import annotations

import asyncio
import errno
from itertools import product

from eddyline.core.model.topic import ConfigChange, Discard, Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.store.log.append import AppendRequest, WriterPosition
from eddyline.store.log_io.catalog_entries import encode_catalog_topic
from eddyline.store.storage.layout import Layout, wal_numbers
from tests.support.manual_clock import ManualClock, settle
from tests.support.models.history import read_items
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, puts, rows, settings, sim_store


async def test_topic_that_refuses_appends_at_its_cap_loses_nothing_when_the_cap_shrinks() -> None:
    async with sim_store() as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(cap_records=5, discard=Discard.REJECT))
        await append(link, "log", rows("a", "b", "c", "d"))
        info = await link.update_topic("log", ConfigChange(cap_records=2))
        assert (info.record_count, info.evict_floor) == (4, 0)


async def test_reader_below_the_floor_gets_no_record_over_the_cap_from_segments() -> None:
    async with sim_store(seal_records=4) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig())
        await append(link, "log", rows("a", "b", "c", "d"))
        assert await link._parts.maintenance.round()
        topic = link._table.get("log")
        topic.config = TopicConfig(cap_bytes=70)  # retention's own task has not looked yet
        assert [item.seq for item in await read_items(link, "log", 1)] == [0, 3, 4]


async def test_job_that_failed_does_not_hold_the_loop_until_its_next_try() -> None:
    async with sim_store(seal_records=2) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig())
        await append(link, "log", rows("a", "b"))
        assert await link._parts.maintenance.round()
        await append(link, "log", rows("c"))
        await link.delete_records("log", before_seq=3)
        maintenance = link._parts.maintenance
        topic = link._table.get("log")
        maintenance._cooldown.record_failure(topic)
        await maintenance.round()
        assert len(topic.segments) == 1


async def test_checkpoint_has_stored_positions_and_no_staged_ones() -> None:
    async with sim_store() as link:
        await link.create_topic("log", Kind.LOG, TopicConfig())
        await append(link, "log", rows("a"), writer=WriterPosition("w", 1, b"", b"1"))
        committer = link._engine.committers[0]
        async with committer.held():
            ack = await link.stage(
                AppendRequest(topic="log", batch=rows("b"), writer=WriterPosition("w", 1, b"1", b"2"))
            )
            await settle()
            assert [writer.position for writer in encode_catalog_topic(link._table.get("log"), None).writers] == [b"1"]
        await ack


async def test_cancelled_checkpoint_leaves_its_changes_to_the_next_one() -> None:
    async with sim_store() as link:
        await link.create_topic("log", Kind.LOG, TopicConfig())
        await append(link, "log", rows("a"))
        checkpoint = asyncio.create_task(link._parts.checkpointer.run())  # noqa: TID251
        topic, turns = link._table.get("log"), 0
        while topic in link._table.dirty and turns < 1_000:
            await asyncio.sleep(0)
            turns += 1
        assert topic not in link._table.dirty
        checkpoint.cancel()
        await asyncio.wait([checkpoint])
        assert topic in link._table.dirty


async def test_checkpoint_cancelled_before_its_cut_blocks_no_append() -> None:
    async with sim_store(wal_shards=2) as link:
        for name in ("one", "two"):
            await link.create_topic(name, Kind.LOG, TopicConfig())
        first, second = link._engine.committers
        first._between.clear()  # a group that is with the disk
        checkpoint = asyncio.create_task(link._parts.checkpointer.run(light=True))  # noqa: TID251
        await settle()
        checkpoint.cancel()
        await asyncio.wait([checkpoint])
        first._between.set()
        for committer in (first, second):
            async with committer.held():
                assert committer._holds
            assert not committer._holds
        await link._parts.checkpointer.run()
        for name in ("one", "two"):
            await append(link, name, rows("a"))


# retention's own task ------------------------------------------------------------------------------------------------


async def test_topic_deleted_while_over_its_cap_has_no_move_due() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(cap_records=1))
        topic = link._table.get("log")
        await append(link, "log", rows("a"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(append(link, "log", rows("b")))
            tasks.create_task(link.delete_topic("log"))
        assert topic.deleted
        await clock.pass_time(2)
        assert topic not in link._parts.retention._due


async def test_shortened_ttl_applies_at_once_without_reads() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(ttl_ms=3_600_000))
        await append(link, "log", rows("a"))
        await link.update_topic("log", ConfigChange(ttl_ms=10_000))
        topic = link._table.get("log")
        await clock.pass_time(9)
        assert topic.floors.ttl == 0
        await clock.pass_time(3)
        assert topic.floors.ttl == 1


async def test_topic_constantly_over_its_cap_does_not_delay_expiry_of_others() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await link.create_topic("old", Kind.LOG, TopicConfig(ttl_ms=5_000))
        await append(link, "old", rows("a"))
        await link.create_topic("full", Kind.LOG, TopicConfig(cap_records=1))

        async def write() -> None:
            while True:
                for _ in range(4):
                    await link.stage(AppendRequest(topic="full", batch=rows("x")))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            await settle()
            clock.advance(6)
            for _ in range(20):
                await settle()
            writing.cancel()
            expired = link._table.get("old").floors.ttl
        assert expired == 1


async def test_topic_whose_front_could_not_be_read_is_tried_again_without_reads() -> None:
    disk, clock = FaultyFs(SimFs()), ManualClock()
    async with sim_store(disk, clock=clock, cache_bytes=0) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(ttl_ms=10_000))
        topic = link._table.get("log")
        await append(link, "log", rows("a"))
        clock.advance(5)
        await append(link, "log", rows("b"))
        await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
        disk.next_fault("pread", error=errno.EIO, lasting=True)
        await clock.pass_time(7)
        disk.faults.clear()
        assert topic.floors.ttl == 0
        await clock.pass_time(61)
        assert topic.floors.ttl == 2


async def test_wal_file_that_could_not_be_removed_is_removed_by_the_next_checkpoint() -> None:
    disk = FaultyFs(SimFs())
    async with sim_store(disk) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig())
        directory = Layout(settings().directory).wal_shard(0)
        await append(link, "log", rows("a"))
        await link._parts.checkpointer.run()
        first = min(wal_numbers(disk.listdir(directory)))
        disk.next_fault("unlink", error=errno.EIO)
        for text in ("b", "c"):
            await append(link, "log", rows(text))
            await link._parts.checkpointer.run()
            numbers = wal_numbers(disk.listdir(directory))
            assert (first in numbers) is (text == "b"), numbers


async def test_reads_and_deletes_of_a_topic_at_its_cap_do_not_wait_for_the_appends_to_end() -> None:
    async with sim_store(clock=ManualClock()) as link:
        await link.create_topic("full", Kind.LOG, TopicConfig(cap_records=1))

        async def write() -> None:
            while True:
                await link.stage(AppendRequest(topic="full", batch=rows("x")))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            await settle()
            calls = [
                tasks.create_task(link.get_topic("full")),
                tasks.create_task(link.read_records("full", after_seq=0, limit=10)),
                tasks.create_task(link.delete_records("full", before_seq=2)),
            ]
            for _ in range(20):
                await settle()
            writing.cancel()
            done = [task.done() for task in calls]
        assert all(done), done


async def test_delete_and_append_that_both_wait_for_a_floor_do_not_wait_for_each_other() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        config = TopicConfig(cap_records=9, ttl_ms=1_000, discard=Discard.REJECT)
        await link.create_topic("kv", Kind.KV, config)
        await append(link, "kv", puts(("a", "1")))
        match = Match(MatchField.KEY, MatchKind.EQ, b"a")
        for turns, more in product(range(30), range(8)):
            async with asyncio.TaskGroup() as tasks:
                calls: list[asyncio.Task[object]] = [tasks.create_task(link.delete_records("kv", match=match))]
                await _turns(turns)
                clock.advance(2)
                calls.append(tasks.create_task(link.get_topic("kv")))
                await _turns(more)
                calls.append(tasks.create_task(append(link, "kv", puts(("a", "1")))))
                for _ in range(5):
                    await settle()
                done = [task.done() for task in calls]
                for task in calls:
                    task.cancel()
            assert all(done), (turns, more, done)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
