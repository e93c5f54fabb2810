"""Scrubbing detects damage without a read, at its rate, and logs it once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import DataCorrupt
from eddyline.store.compaction.reclaim import reclaim
from eddyline.store.storage.layout import Layout, base_file
from tests.support.manual_clock import ManualClock
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import all_rows, append, kv_topic, log_topic, puts, rows, settings, sim_store

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.store.shard.shard import Shard


async def sealed(link: Shard, name: str = "log", *, segments: int = 1) -> list[Path]:
    """Make a topic with a few segments. Returns their files."""
    topic = link._table.get(name)
    for number in range(segments):
        await append(link, name, rows(f"{number}" * 100, "x"))
        await link._parts.maintenance._sealer.seal(topic, topic.head_seq)
    return [segment.path for segment in topic.segments]


def damage(fs: SimFs, path: Path, offset: int = 1500) -> None:
    file = fs.open(path)
    (byte,) = file.pread(1, offset)
    file.pwritev([bytes([byte ^ 255])], offset)


async def later(link: Shard, clock: ManualClock, seconds: float) -> None:
    clock.advance(seconds)
    assert await link._parts.maintenance.round()


async def test_damage_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await log_topic(link)
        paths = await sealed(link, segments=3)
        damage(fs, paths[1])
        for _ in range(5):
            await later(link, clock, 1)
        assert link._parts.maintenance._scrubber.pass_count >= 2
        assert link.status().corrupt_count == 1
        messages = [record for record in caplog.records if record.message == "corruption_found"]
        assert len(messages) == 1
        with pytest.raises(DataCorrupt) as refused:
            await all_rows(link, "log")
        assert refused.value.metadata["file"] == str(paths[1])
        assert [row.seq for row in await all_rows(link, "log", after_seq=4)] == [5, 6]


async def test_a_damaged_head_tail_or_base_is_detected() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await log_topic(link)
        head, tail = await sealed(link, segments=2)
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1")))
        topic = link._table.get("kv")
        await link._parts.maintenance._sealer.seal(topic, 1)
        await link._parts.maintenance._planner._bases.make(topic)
        assert topic.base is not None
        base = base_file(Layout(settings().directory).topic_dir(topic.id), topic.base.seq, topic.base.generation)
        damage(fs, head, 3)
        damage(fs, tail, fs.open(tail).size() - 40)
        damage(fs, base)
        await later(link, clock, 1)
        assert link.status().corrupt_count == 3


async def test_a_base_without_segments_is_scrubbed() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock) as link:
        await kv_topic(link)
        await append(link, "kv", puts(("a", "1")))
        topic, planner = link._table.get("kv"), link._parts.maintenance._planner
        await link._parts.maintenance._sealer.seal(topic, 1)
        await planner._bases.make(topic)
        await link.delete_records("kv", before_seq=2)
        await reclaim(planner._swap, topic)
        directory = Layout(settings().directory).topic_dir(topic.id)
        (base,) = fs.listdir(directory)
        damage(fs, directory / base)
        await later(link, clock, 1)
        assert link.status().corrupt_count == 1


async def test_it_reads_no_faster_than_its_rate() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, scrub_bytes_per_s=1000) as link:
        await log_topic(link)
        paths = await sealed(link, segments=3)
        total_bytes = sum(fs.open(path).size() for path in paths)
        scrubber = link._parts.maintenance._scrubber
        seconds = 0
        while scrubber.pass_count < 3:
            await later(link, clock, 1)
            seconds += 1
        assert 3 * total_bytes / 1000 - 10 <= seconds <= 3 * total_bytes / 1000 + 10


async def test_zero_bytes_a_second_is_off() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, scrub_bytes_per_s=0) as link:
        await log_topic(link)
        damage(fs, (await sealed(link))[0])
        await later(link, clock, 3600)
        assert link.status().corrupt_count == 0


async def test_files_removed_meanwhile_are_no_damage() -> None:
    fs, clock = SimFs(), ManualClock()
    async with sim_store(fs, clock=clock, scrub_bytes_per_s=600) as link:
        await log_topic(link)
        await log_topic(link, "other")
        await sealed(link, segments=3)
        await sealed(link, "other", segments=3)
        for number in range(12):
            await later(link, clock, 1)
            if number == 3:
                await link.delete_topic("log")
            if number == 6:
                await sealed(link, "other", segments=1)
        assert link.status().corrupt_count == 0
        assert len(link._table.get("other").segments) == 1
