"""Evicted records never come back, whatever the store loses: after kills and power failures, without its fold, before a
checkpoint."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CatalogLost
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from eddyline.core.records.record import Gap, GapReason, Record
from tests.support.manual_clock import ManualClock
from tests.support.models.history import read_items
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import Crashed, SimFs
from tests.support.store.real import real_store
from tests.support.store.simulated import CATALOG, LASTING, append, puts, rows, sim_store

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.shard.shard import Shard
    from tests.support.sim.fs import CrashKind

VALUES = ("a", "b", "c", "d")
LAST_SEQ = len(VALUES)


async def overwrite(link: Shard, durability: Durability) -> None:
    """Fill topics with a cap of one record, overwritten; one has a single key, one none."""
    config = TopicConfig(durability, cap_records=1)
    await link.create_topic("kv", Kind.KV, config)
    await link.create_topic("log", Kind.LOG, config)
    for value in VALUES:
        await append(link, "kv", puts(("k", value)))
        await append(link, "log", rows(value))
    await check(link)


async def check(link: Shard) -> None:
    """Check that each topic has its last record alone, and a gap for the others."""
    for name in ("kv", "log"):
        info = await link.get_topic(name)
        assert (info.record_count, info.earliest_seq, info.evict_floor) == (1, LAST_SEQ, LAST_SEQ - 1), name
        gap, record, *behind = await read_items(link, name)
        assert isinstance(gap, Gap)
        assert (gap.first_seq, gap.last_seq, gap.reason) == (1, LAST_SEQ - 1, GapReason.CAP)
        assert isinstance(record, Record)
        assert (record.seq, record.data) == (LAST_SEQ, VALUES[-1].encode())
        # After a power failure: seqs that a DISK topic had reserved and never assigned.
        assert all(isinstance(item, Gap) and item.reason is GapReason.UNSYNCED for item in behind)
    entries: list[Record] = []
    async for page in link.range_entries("kv"):
        if page.batch is not None:
            entries += page.batch.to_rows()
    assert [(entry.key, entry.seq, entry.data) for entry in entries] == [(b"k", LAST_SEQ, VALUES[-1].encode())]


async def seal(link: Shard) -> None:
    for topic in link._table.with_frames():
        await link._parts.checkpointer._sealer.seal(topic, topic.head_seq)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("fold_is_lost", [False, True])
@pytest.mark.parametrize("crash", ["kill", "power"])
@pytest.mark.parametrize("durability", LASTING)
async def test_evicted_record_does_not_come_back(
    durability: Durability, crash: CrashKind, fold_is_lost: bool, sealed: bool
) -> None:
    fs, fold, clock = SimFs(), SimFold(0), ManualClock()
    try:
        async with sim_store(fs, fold, clock) as link:
            await overwrite(link, durability)
            if sealed:
                await seal(link)
            await clock.pass_time(1.5)  # what DISK topics wrote is synced
            fs.crashed = True
    except* Crashed:
        pass
    for seed in range(3 if crash == "power" else 1):
        left = fs.reboot(crash, seed=seed)
        for _ in range(2):
            lost = SimFold(0) if fold_is_lost else None
            async with sim_store(left, lost or (fold.power() if crash == "power" else fold.kill()), clock) as link:
                await check(link)
            left = left.reboot("kill")


async def test_store_without_its_catalog_returns_nothing_rather_than_evicted_records() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await overwrite(link, Durability.FSYNC)
    kept = fs.engines.pop(CATALOG)
    with pytest.raises(CatalogLost):
        async with sim_store(fs.reboot("kill"), clock=clock):
            raise AssertionError("it is not opened")
    fs.engines[CATALOG] = kept
    async with sim_store(fs.reboot("kill"), clock=clock) as link:
        await check(link)


@pytest.mark.parametrize("sealed", [False, True])
async def test_real_store_that_was_killed_and_lost_its_fold_has_one_record_a_topic(
    tmp_path: Path, sealed: bool
) -> None:
    async with real_store(tmp_path / "store") as link:
        await overwrite(link, Durability.DISK)
        if sealed:
            await seal(link)
        # The directory as a kill leaves it.
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "fold")
    for _ in range(2):
        async with real_store(tmp_path / "killed") as link:
            await check(link)


async def test_a_topic_deleted_while_its_floor_moves_stays_deleted() -> None:
    disk = SimFs()
    async with sim_store(disk, SimFold(0)) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(cap_records=1))
        await append(link, "log", rows("a"))
        await append(link, "log", rows("b"))
        topic = link._table.get("log")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.delete_topic("log"))
            await asyncio.sleep(0)
            tasks.create_task(link._parts.retention.enforce(topic))
        assert topic.deleted
        await link._parts.checkpointer.run()
    async with sim_store(disk, SimFold(0)) as link:
        assert not link._table.all()


async def test_concurrent_reads_all_wait_for_the_due_move() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(ttl_ms=1_000))
        await append(link, "log", rows("a"))
        clock.advance(0.75)
        await append(link, "log", rows("b"))
        topic = link._table.get("log")
        async with asyncio.TaskGroup() as tasks:
            clock.advance(0.5)
            reads = [tasks.create_task(read_items(link, "log")) for _ in range(3)]
        assert topic.floors.ttl == 1
        for read in reads:
            gap, record = read.result()
            assert gap == Gap(1, 1, GapReason.TTL)
            assert isinstance(record, Record)
            assert record.data == b"b"
