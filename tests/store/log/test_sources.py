"""Sources in the store: definition, lease, fence, position."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import (
    InvalidArgument,
    LeaseHeld,
    NotKv,
    SourceExists,
    SourceNotFound,
    StaleFence,
    StalePosition,
    TopicHasSource,
    TopicNotEmpty,
    TopicNotFound,
)
from eddyline.core.model.source import Renewal, SourceDefinition, SourceReport
from tests.support.manual_clock import ManualClock, settle
from tests.support.sim.fold import SimFold
from tests.support.sim.fs import SimFs
from tests.support.store.simulated import append, kv_topic, log_topic, puts, sim_store

if TYPE_CHECKING:
    from eddyline.store.shard.shard import Shard

CERTS = SourceDefinition("certs", "kv", "certs")
LEASE_MS = 5_000
HOUR_MS = 3_600_000


async def test_definition_is_kept_once_and_shields_its_topic() -> None:
    async with sim_store() as link:
        with pytest.raises(TopicNotFound):
            await link.put_source(CERTS)
        await log_topic(link, "log")
        with pytest.raises(NotKv):
            await link.put_source(SourceDefinition("certs", "log", "certs"))
        await kv_topic(link)
        assert (await link.put_source(CERTS))[1]
        assert not (await link.put_source(CERTS))[1]
        with pytest.raises(SourceExists):
            await link.put_source(SourceDefinition("certs", "kv", "other"))
        with pytest.raises(TopicHasSource):
            await link.put_source(SourceDefinition("second", "kv", "certs"))
        with pytest.raises(TopicHasSource):
            await append(link, "kv", puts(("k", "v")))
        await link.delete_source("certs")
        await append(link, "kv", puts(("k", "v")))
        with pytest.raises(TopicNotEmpty):
            await link.put_source(CERTS)
        with pytest.raises(InvalidArgument):
            await link.put_source(SourceDefinition("certs", "kv", ""))


async def test_lease_is_one_holders_until_it_runs_out() -> None:
    clock = ManualClock()
    async with sim_store(clock=clock) as link:
        await kv_topic(link)
        await link.put_source(CERTS)
        first = await link.acquire_lease("certs", holder="a", lease_ms=LEASE_MS)
        with pytest.raises(LeaseHeld) as held:
            await link.acquire_lease("certs", holder="b", lease_ms=LEASE_MS)
        assert held.value.remaining_ms == LEASE_MS
        again = await link.acquire_lease("certs", holder="a", lease_ms=LEASE_MS)
        assert again.fence > first.fence
        with pytest.raises(StaleFence):
            await link.renew_lease("certs", fence=first.fence, report=SourceReport())
        await clock.pass_time(LEASE_MS / 1000 - 1)
        assert await link.renew_lease("certs", fence=again.fence, report=SourceReport("LIVE")) == Renewal(
            LEASE_MS, changeable=CERTS.changeable
        )
        await clock.pass_time(LEASE_MS / 1000 + 1)
        other = await link.acquire_lease("certs", holder="b", lease_ms=LEASE_MS)
        assert other.fence > again.fence
        assert (other.source.report.state, other.source.report.last_revision) == ("CONNECTING", 0)
        await link.release_lease("certs", fence=other.fence)
        assert (await link.get_source("certs")).holder == ""


async def test_position_moves_with_its_batch_and_alone() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await link.put_source(CERTS)
        fence = (await link.acquire_lease("certs", holder="a", lease_ms=0)).fence
        done = await link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))
        assert (done.first_seq, done.last_seq) == (1, 1)
        again = await link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))
        assert again.deduplicated
        alone = await link.apply_batch("certs", fence=fence, previous=b"1", new=b"2", batch=None)
        assert (alone.first_seq, alone.last_seq) == (0, 0)
        assert (await link.get_source("certs")).position == b"2"
        with pytest.raises(StalePosition):
            await link.apply_batch("certs", fence=fence, previous=b"1", new=b"3", batch=None)
        newer = (await link.acquire_lease("certs", holder="a", lease_ms=0)).fence
        with pytest.raises(StaleFence):
            await link.apply_batch("certs", fence=fence, previous=b"2", new=b"3", batch=None)
        with pytest.raises(StaleFence):
            await link.apply_batch("certs", fence=newer + 1, previous=b"2", new=b"3", batch=None)
        assert (await link.get_topic("kv")).head_seq == 1


async def test_topic_deletion_takes_its_source_along() -> None:
    async with sim_store() as link:
        await kv_topic(link)
        await link.put_source(CERTS)
        await link.delete_topic("kv")
        with pytest.raises(SourceNotFound):
            await link.get_source("certs")
        await kv_topic(link)
        assert (await link.put_source(CERTS))[1]
        assert (await link.get_source("certs")).position == b""


async def test_lease_returns_a_position_only_once_its_batch_is_applied() -> None:
    fold, clock = SimFold(0), ManualClock()
    async with sim_store(fold=fold, clock=clock) as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)
        await link.put_source(CERTS)
        fence = (await link.acquire_lease("certs", holder="a", lease_ms=0)).fence
        await link.apply_batch("certs", fence=fence, previous=b"", new=b"1", batch=puts(("k", "v")))
        fold.stall(1)
        moves = [
            tasks.create_task(
                link.apply_batch("certs", fence=fence, previous=previous, new=new, batch=puts(("k", "v")))
            )
            for previous, new in ((b"1", b"2"), (b"2", b"3"))
        ]
        await settle()
        assert (await link.get_source("certs")).position == b"1"
        taking = tasks.create_task(link.acquire_lease("certs", holder="a", lease_ms=0))
        await settle()
        assert not taking.done()
        await clock.pass_time(1)
        assert (await taking).source.position == b"3"
        assert [(await move).last_seq for move in moves] == [2, 3]


async def test_topic_that_gets_a_source_refuses_an_append_that_still_reads_its_keys() -> None:
    async with sim_store() as link, asyncio.TaskGroup() as tasks:
        await kv_topic(link)

        async def late() -> None:
            with pytest.raises(TopicHasSource):
                await append(link, "kv", puts(("k", "v")), expected_versions=((b"k", b""),))

        tasks.create_task(late())
        await asyncio.sleep(0)
        await link.put_source(CERTS)
    assert link._table.get("kv").staged_seq == 0


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_lease_runs_its_time_whatever_the_wall_clock_says_and_older_fences_stay_refused(jump_ms: int) -> None:
    fs, fold, clock = SimFs(), SimFold(0), ManualClock()
    async with sim_store(fs, fold, clock) as link:
        await kv_topic(link)
        await link.put_source(CERTS)
        first = (await link.acquire_lease("certs", holder="a", lease_ms=LEASE_MS)).fence
        await clock.pass_time(1)
        clock.set_wall_ms(clock.now_ms() + jump_ms)
        source = await link.get_source("certs")
        assert (source.holder, source.lease_remaining_ms) == ("a", LEASE_MS - 1_000)
        with pytest.raises(LeaseHeld) as held:
            await link.acquire_lease("certs", holder="b", lease_ms=LEASE_MS)
        assert held.value.remaining_ms == LEASE_MS - 1_000
        await link.apply_batch("certs", fence=first, previous=b"", new=b"1", batch=puts(("k", "a")))
        await clock.pass_time(LEASE_MS / 1000 - 1)
        second = (await link.acquire_lease("certs", holder="b", lease_ms=LEASE_MS)).fence
        clock.set_wall_ms(clock.now_ms() - jump_ms)
        await stale(link, first)
    async with sim_store(fs.reboot("kill"), fold.kill(), clock) as link:
        await stale(link, first)
        with pytest.raises(LeaseHeld):
            await link.acquire_lease("certs", holder="a", lease_ms=LEASE_MS)
        await link.apply_batch("certs", fence=second, previous=b"1", new=b"2", batch=puts(("k", "b")))
        (entry,) = (await link.batch_get_entries("kv", [b"k"])).entries
        assert entry is not None
        assert entry.data == b"b"


async def stale(link: Shard, fence: int) -> None:
    """Nothing that carries this fence is taken."""
    with pytest.raises(StaleFence):
        await link.apply_batch("certs", fence=fence, previous=b"1", new=b"x", batch=puts(("k", "stale")))
    with pytest.raises(StaleFence):
        await link.renew_lease("certs", fence=fence, report=SourceReport())
    with pytest.raises(StaleFence):
        await link.release_lease("certs", fence=fence)
