"""The disk's floor: appends are refused before the disk is full, all else goes on, and it ends by itself."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import Code, DiskFloor, Throttled
from eddyline.core.model.topic import Durability, Kind, TopicConfig
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.store.real import real_store
from tests.support.store.simulated import all_rows, append, log_topic, rows, sim_store, values

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.shard.shard import Shard

FLOOR = 1 << 20
MARGIN = FLOOR // 8


async def test_appends_are_refused_below_the_floor_and_taken_again_by_themselves() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        fs.free = FLOOR - 1
        await clock.pass_time(1.5)
        with pytest.raises(DiskFloor) as refused:
            await append(link, "log", rows("b"))
        assert refused.value.metadata["diskFreeBytes"] == str(FLOOR - 1)
        assert int(refused.value.metadata["retryAfterMs"]) > 0
        fs.free = FLOOR + MARGIN
        await clock.pass_time(1.5)
        await append(link, "log", rows("c"))
        assert values(await all_rows(link, "log")) == [b"a", b"c"]


async def test_a_start_below_the_floor_takes_no_append() -> None:
    fs = SimFs()
    fs.free = 0
    async with sim_store(fs, disk_floor_bytes=FLOOR) as link:
        with pytest.raises(DiskFloor):
            await log_topic(link)


async def test_a_little_more_than_the_floor_does_not_open_the_gate() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        await low(link, fs, clock)
        fs.free = FLOOR + MARGIN - 1
        await clock.pass_time(1.5)
        with pytest.raises(DiskFloor):
            await append(link, "log", rows("b"))


async def test_a_refusal_lets_the_disk_be_looked_at_at_once() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        await low(link, fs, clock)
        fs.free = 2 * FLOOR
        with pytest.raises(DiskFloor):
            await append(link, "log", rows("b"))
        await clock.pass_time(0)
        await append(link, "log", rows("b"))


async def test_appends_do_not_outrun_the_looks() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        fs.free = FLOOR + 4_000
        await clock.pass_time(1.5)
        await append(link, "log", rows("x" * 2_000))
        with pytest.raises(Throttled):
            await append(link, "log", rows("y"))
        await clock.pass_time(0)
        await append(link, "log", rows("y"))


async def test_reads_topic_deletes_and_upkeep_go_on_below_the_floor() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        await log_topic(link, "other")
        await append(link, "log", rows("a"))
        await low(link, fs, clock)
        before = link.status()
        assert (before.read_only_reason, before.disk_free_bytes) == ("DISK_FLOOR", FLOOR - 1)
        assert values(await all_rows(link, "log")) == [b"a"]
        await link.delete_topic("other")
        await link._parts.checkpointer.run()
        assert link.status().checkpoint == before.checkpoint + 1
        fs.free = 2 * FLOOR
        await clock.pass_time(1.5)
        assert link.status().read_only_reason == ""


async def test_records_are_deleted_below_the_floor() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        await append(link, "log", rows("a", "b", "c"))
        await low(link, fs, clock)
        assert (await link.delete_records("log", before_seq=3)).deleted_count == 2
        assert values(await all_rows(link, "log")) == [b"c"]
        with pytest.raises(DiskFloor) as refused:
            await append(link, "log", rows("d"))
        assert refused.value.code is Code.RESOURCE_EXHAUSTED


async def test_floors_move_below_the_floor() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(ttl_ms=5_000))
        await append(link, "log", rows("a"))
        await low(link, fs, clock)
        await clock.pass_time(6)
        assert (await link.get_topic("log")).evict_floor == 1


async def test_ephemeral_topics_take_appends_below_the_floor() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link, durability=Durability.EPHEMERAL)
        await low(link, fs, clock)
        await append(link, "log", rows("a"))


async def test_a_failed_poll_of_the_disk_changes_nothing() -> None:
    fs, clock = FaultyFs(SimFs()), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=FLOOR) as link:
        await log_topic(link)
        fs.next_fault("free_bytes", error=errno.EIO, lasting=True)
        fs.free = 0
        await clock.pass_time(3)
        await append(link, "log", rows("a"))


async def test_without_a_floor_free_space_is_reported_and_no_append_refused() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, disk_floor_bytes=0) as link:
        fs.free = 5
        await clock.pass_time(1.5)
        await log_topic(link)
        await append(link, "log", rows("a"))
        assert (link.status().disk_free_bytes, link.status().read_only_reason) == (5, "")


async def test_a_disk_full_in_upkeep_fails_no_append_and_is_tried_again() -> None:
    fs, clock = FaultyFs(SimFs()), ManualClock()
    async with sim_store(fs, clock=clock, seal_records=1) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        fs.next_fault("mkdir", error=errno.ENOSPC)
        assert not await link._parts.maintenance.round()
        await append(link, "log", rows("b"))
        clock.advance(1)
        assert await link._parts.maintenance.round()
        assert link.status().segment_count > 0
        assert values(await all_rows(link, "log")) == [b"a", b"b"]


async def low(link: Shard, fs: SimFs, clock: ManualClock) -> None:
    """Bring the store below its floor."""
    fs.free = FLOOR - 1
    await clock.pass_time(1.5)
    assert link.status().read_only_reason == "DISK_FLOOR"


async def test_bytes_of_the_log_are_those_that_its_files_take_of_the_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    async with real_store(tmp_path / "store", clock=clock, wal_file_bytes=1 << 20) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        await settle()
        await clock.pass_time(1.5)
        files = list((tmp_path / "store" / "wal" / "00").iterdir())
        assert "spare" in {path.name for path in files}
        taken = sum(path.stat().st_blocks * 512 for path in files)
        assert link.status().wal_bytes == taken >= 1 << 20, "the spare is filled ahead"
