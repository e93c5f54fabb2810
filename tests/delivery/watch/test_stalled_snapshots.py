"""Snapshots of stalled subscribers: others go first, and the stalled ones start over when they read again."""

from __future__ import annotations

from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from eddyline.delivery.fetch.scan_slots import SNAPSHOT_IDLE_S, SNAPSHOT_IDLE_S_ALONE, SNAPSHOTS_AT_ONCE
from eddyline.delivery.watch.request import StartPoint, TopicRequest, WatchRequest
from eddyline.v1 import delivery_pb2 as pb
from tests.support.delivery.role import ServedDelivery, served_delivery, snapshot
from tests.support.delivery.slots import held_count, waiting_count
from tests.support.manual_clock import settle
from tests.support.models.subscriber_fold import Folded
from tests.support.store.simulated import append, kv_topic, puts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from eddyline.delivery.fetch.scan_slots import ScanSlot

ENTRIES: Final = 120
ENTRY_BYTES: Final = 5_000
"""600 kB: three pages of the store, about ten frames."""


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        await kv_topic(cluster.store)
        await append(cluster.store, "kv", puts(*[(f"{i:03}", "x" * ENTRY_BYTES) for i in range(ENTRIES)]))
        yield cluster


class Reader:
    """A subscriber that takes a frame when the test says so."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        self._frames = frames
        self.folded = Folded()
        self.begun_count = 0

    async def take(self) -> str:
        """Take the next frame; return its kind."""
        frame = pb.WatchTopicsResponse.FromString(await anext(self._frames))
        kind = frame.WhichOneof("frame")
        assert kind is not None
        self.begun_count += kind == "snapshot_begin"
        self.folded.take(frame)
        return kind

    async def begin(self) -> None:
        """Take the first frame of a snapshot, then stall."""
        while await self.take() != "rows":
            pass

    async def finish(self, seq: int) -> None:
        """Read until the snapshot is complete and the log is at `seq`."""
        while not self.folded.ended or self.folded.seq < seq:
            await self.take()


@asynccontextmanager
async def reader(cluster: ServedDelivery) -> AsyncIterator[Reader]:
    request = WatchRequest((TopicRequest("kv", StartPoint.SNAPSHOT),), heartbeat_s=600.0)
    async with cluster.role.watches.open(request) as subscriber, aclosing(subscriber.frames()) as frames:
        yield Reader(frames)


async def test_more_stalled_snapshots_than_slots_delay_a_fast_one_for_seconds_and_finish_later(
    cluster: ServedDelivery,
) -> None:
    async with AsyncExitStack() as stack:
        stalled = [await stack.enter_async_context(reader(cluster)) for _ in range(SNAPSHOTS_AT_ONCE)]
        for each in stalled:
            await each.begin()
        assert cluster.wire.open_scans == SNAPSHOTS_AT_ONCE
        async with cluster.watch(snapshot("kv")) as watch:
            fast = Folded()
            await cluster.until(lambda: waiting_count(cluster.role.slots) == 1)
            start_s = cluster.clock.monotonic_s()
            await cluster.until(lambda: waiting_count(cluster.role.slots) == 0, passing_s=0.01)
            assert cluster.clock.monotonic_s() - start_s <= SNAPSHOT_IDLE_S + 0.1
            while not fast.ended:
                fast.take(await watch.next())
            assert len(fast.values) == ENTRIES
        await append(cluster.store, "kv", puts(("000", "new"), ("001", None), ("more", "1")))
        cluster.clock.advance(SNAPSHOT_IDLE_S_ALONE + 0.1)
        await settle()
        assert (cluster.wire.open_scans, held_count(cluster.role.slots)) == (0, 0)
        for each in stalled:
            await each.finish(ENTRIES + 3)
        assert [each.begun_count for each in stalled] == [2] * SNAPSHOTS_AT_ONCE
        await append(cluster.store, "kv", puts(("live", "2")))
        for each in stalled:
            await each.finish(ENTRIES + 4)
            assert len(each.folded.values) == ENTRIES + 1
            assert each.folded.values[b"000"] == b"new"
            assert b"001" not in each.folded.values


async def test_stalled_subscribers_in_the_queue_delay_others_for_seconds(cluster: ServedDelivery) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4 * SNAPSHOTS_AT_ONCE):
            await stack.enter_async_context(cluster.watch_narrowly(snapshot("kv")))
        await cluster.until(lambda: waiting_count(cluster.role.slots) == 3 * SNAPSHOTS_AT_ONCE)
        async with cluster.watch(snapshot("kv")) as watch:
            await cluster.until(lambda: waiting_count(cluster.role.slots) == 3 * SNAPSHOTS_AT_ONCE + 1)
            start_s = cluster.clock.monotonic_s()
            await cluster.until(lambda: waiting_count(cluster.role.slots) == 0, passing_s=0.0005)
            # the clock advances by iterations of the event loop, so more time passes on a busy machine
            assert cluster.clock.monotonic_s() - start_s <= 10 * SNAPSHOT_IDLE_S
            assert cluster.wire.open_scans <= SNAPSHOTS_AT_ONCE
            await watch.until_kind("snapshot_end")


async def test_slow_reader_finishes_although_another_always_waits(cluster: ServedDelivery) -> None:
    slots = cluster.role.slots

    def queue_up() -> ScanSlot:
        return slots.request(granted=lambda: None, revoked=lambda: None)

    for _ in range(SNAPSHOTS_AT_ONCE - 1):
        queue_up().pause_idle()
    async with reader(cluster) as slow:
        await slow.begin()
        rival = queue_up()
        while not slow.folded.ended:
            await cluster.clock.pass_time(2.5 * SNAPSHOT_IDLE_S)
            if rival.held:
                rival.release()
                await slow.take()
                rival = queue_up()
            else:
                await slow.take()
        # its idle time was one pause too short, then still too short, and then more than enough
        assert slow.begun_count == 3
        assert len(slow.folded.values) == ENTRIES


async def test_heartbeats_continue_while_a_snapshot_waits_for_its_slot(cluster: ServedDelivery) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(SNAPSHOTS_AT_ONCE):
            await (await stack.enter_async_context(reader(cluster))).begin()
        async with cluster.watch(snapshot("kv"), heartbeat_ms=500) as watch:
            await cluster.until(lambda: waiting_count(cluster.role.slots) == 1)
            for _ in range(3):
                cluster.clock.advance(0.5)
                token = (await watch.kind("heartbeat")).resume_token
        await cluster.until(lambda: waiting_count(cluster.role.slots) == 0)
        cluster.clock.advance(SNAPSHOT_IDLE_S)
        async with cluster.watch(snapshot("kv"), resume_token=token) as watch:
            await watch.kind("snapshot_begin")
            await watch.until_kind("caught_up")


async def test_slots_are_released_when_subscribers_leave(cluster: ServedDelivery) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(SNAPSHOTS_AT_ONCE):
            await (await stack.enter_async_context(reader(cluster))).begin()
        waiting = cluster.watch(snapshot("kv"))
        await cluster.until(lambda: waiting_count(cluster.role.slots) == 1)
        waiting.call.cancel()
        await cluster.until(lambda: waiting_count(cluster.role.slots) == 0)
        assert held_count(cluster.role.slots) == SNAPSHOTS_AT_ONCE
    await cluster.until(lambda: held_count(cluster.role.slots) == 0)
    assert cluster.wire.open_scans == 0


async def test_slot_is_released_by_a_subscriber_that_leaves_while_the_store_reads(cluster: ServedDelivery) -> None:
    cluster.wire.reads_open.clear()
    async with cluster.watch(snapshot("kv")):
        await cluster.until(lambda: cluster.wire.open_scans == 1)
    await cluster.until(lambda: cluster.role.stats.watch_count == 0)
    cluster.wire.reads_open.set()
    await cluster.until(lambda: held_count(cluster.role.slots) == 0)
    assert cluster.wire.open_scans == 0
