"""Damaged directories and failing disks: refused starts, reads that still work, and counters."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from tests.support.manual_clock import ManualClock
from tests.support.sim.faulty_fs import FaultyFs
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, log_topic, rows, sim_store


async def test_directory_with_topics_and_no_identity_is_refused() -> None:
    fs = SimFs()
    async with sim_store(fs) as link:
        await log_topic(link)
    fs = fs.reboot("kill")
    fs.unlink(Path("/data/identity"))
    with pytest.raises(DataCorrupt, match="identity is missing"):
        async with sim_store(fs):
            pass


async def test_read_whose_floor_cannot_be_logged_returns_the_present_records() -> None:
    disk, clock = FaultyFs(SimFs()), ManualClock()
    async with sim_store(disk, clock=clock) as link:
        await link.create_topic("short", Kind.LOG, TopicConfig(ttl_ms=1_000))
        await append(link, "short", rows("a"))
        clock.advance(2)
        disk.next_fault("fdatasync", error=errno.EIO, lasting=True)
        read = await link.read_records("short", after_seq=0)
        assert [item.count for item in read.items if isinstance(item, Batch)] == [1]
        assert link.status().read_only_reason == "SYNC_FAILED"


async def test_damage_that_a_read_hits_is_counted_once() -> None:
    disk = SimFs()
    async with sim_store(disk, cache_bytes=0) as link:
        await log_topic(link)
        await append(link, "log", rows("a"))
        location = link._table.get("log").index.entry(0).location
        file = disk.open(Path(f"/data/wal/00/{location.file_number:016x}.wal"))
        file.pwritev([b"\xff"], location.offset + location.length - 1)
        for _ in range(2):
            with pytest.raises(DataCorrupt):
                await link.read_records("log", after_seq=0)
        assert link.status().corrupt_count == 1
