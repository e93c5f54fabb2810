"""What retention must not take, and what it must have taken before something else counts."""

from __future__ import annotations

from eddyline.core.topic import ConfigChange, Discard, Kind, TopicConfig
from tests.support.history import read_items
from tests.support.store import append, rows, sim_store


async def test_topic_that_refuses_loses_nothing_when_its_cap_gets_smaller() -> None:
    async with sim_store() as link:
        await link.create_topic("log", Kind.LOG, TopicConfig(cap_records=5, discard=Discard.REJECT))
        await append(link, "log", rows("a", "b", "c", "d"))
        info = await link.update_topic("log", ConfigChange(cap_records=2))
        assert (info.record_count, info.evict_floor) == (4, 0)


async def test_reader_behind_the_floor_sees_nothing_over_the_cap_where_records_are_in_segments() -> None:
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
        maintenance._resting.failed(topic)
        await maintenance.round()
        assert len(topic.segments) == 1
