"""Streams that a replica ends, with a token that neither loses nor repeats records; and progress frames.

Progress never overtakes a record.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from eddyline.core.runtime.settings import SettingsError
from eddyline.core.transport.status import DETAILS_KEY, unwrap
from eddyline.delivery.config import DeliverySettings
from eddyline.delivery.watch.watches import AGE_JITTER, LEAVES_A_SECOND
from eddyline.v1 import cluster_pb2
from eddyline.v1 import delivery_pb2 as pb
from tests.support.delivery.role import ServedDelivery, earliest, served_delivery, snapshot, tail
from tests.support.manual_clock import settle
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AGE_MS = 60_000
GRACE_S = 600.0
"""More than any iteration of the event loop takes on a busy machine, since the clock advances by iterations."""


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery(stream_age_ms_max=AGE_MS) as cluster:
        yield cluster


async def test_drain_ends_open_streams_with_an_exact_token_and_refuses_new_ones(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(earliest("log")) as watch, asyncio.TaskGroup() as tasks:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("a", "b"))
        await watch.data(2)
        draining = tasks.create_task(cluster.role.watches.drain(GRACE_S))
        await cluster.until(draining.done, passing_s=0.001)
        assert draining.result()
        frame = await watch.until_kind("going_away")
        assert frame.going_away.reason == pb.GOING_AWAY_REASON_DRAINING
        with pytest.raises(StopAsyncIteration):
            await watch.next()
    error = await cluster.refusal(tail("log"))
    assert (error.code(), unwrap(error).reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    details = dict(error.trailing_metadata() or ())[DETAILS_KEY]
    status = status_pb2.Status.FromString(details)
    assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details)
    assert cluster.role.stats.watch_count == 0
    async with served_delivery() as other:
        await log_topic(other.store)
        await append(other.store, "log", rows("a", "b", "c"))
        async with other.watch(earliest("log"), resume_token=frame.resume_token) as again:
            assert await again.data(1) == [b"c"]


async def test_drain_cancels_a_stalled_stream(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch_narrowly(tail("log")) as watch, asyncio.TaskGroup() as tasks:
        await watch.kind("caught_up")
        for _ in range(20):
            await append(cluster.store, "log", rows("x" * 60_000))
        await cluster.until(lambda: cluster.role.stats.delivered_count >= 2)  # the window holds one
        for _ in range(200):
            await asyncio.sleep(0)
        start_s = cluster.clock.monotonic_s()
        draining = tasks.create_task(cluster.role.watches.drain(2.0))
        await cluster.until(draining.done, passing_s=0.01)
        assert not draining.result()
        assert 1.9 <= cluster.clock.monotonic_s() - start_s <= 2.2


async def test_status_is_draining_until_the_last_stream_has_left(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch, asyncio.TaskGroup() as tasks:
        await watch.kind("caught_up")
        before = await cluster.cluster.GetStatus(cluster_pb2.GetStatusRequest())
        assert (before.ready, before.reason, before.delivery.draining) == (True, "", False)
        draining = tasks.create_task(cluster.role.watches.drain(GRACE_S))
        await settle()
        status = await cluster.cluster.GetStatus(cluster_pb2.GetStatusRequest())
        assert (status.ready, status.reason, status.delivery.draining) == (False, "DRAINING", True)
        assert status.delivery.watch_count == 1
        await cluster.until(draining.done, passing_s=0.001)
    status = await cluster.cluster.GetStatus(cluster_pb2.GetStatusRequest())
    assert (status.reason, status.delivery.watch_count) == ("DRAINING", 0)


async def test_drain_of_a_replica_without_streams_takes_no_time(cluster: ServedDelivery) -> None:
    assert await cluster.role.watches.drain(5.0)


async def test_many_streams_leave_spread_over_time(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    watches = [cluster.watch(tail("log")) for _ in range(200)]
    for watch in watches:
        await watch.kind("caught_up")
    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(cluster.role.watches.drain(GRACE_S))
        await settle()
        cluster.clock.advance(200 / LEAVES_A_SECOND / 2)
        await cluster.until(lambda: cluster.role.stats.watch_count < 150)
        assert cluster.role.stats.watch_count > 50, "half of the time, half of them"
        await cluster.until(draining.done, passing_s=0.001)
        assert draining.result()
    for watch in watches:
        assert (await watch.until_kind("going_away")).resume_token


async def test_stream_at_its_maximum_age_ends_and_a_new_one_opens(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    async with cluster.watch(snapshot("kv"), heartbeat_ms=60_000) as watch:
        await watch.until_kind("caught_up")
        await cluster.clock.pass_time(AGE_MS / 1000 * (1 - AGE_JITTER) - 1)
        assert cluster.role.stats.watch_count == 1
        await cluster.clock.pass_time(AGE_MS / 1000 * 2 * AGE_JITTER + 2)
        frame = await watch.until_kind("going_away")
        assert frame.going_away.reason == pb.GOING_AWAY_REASON_AGE
    await append(cluster.store, "kv", puts(("a", "1")))
    async with cluster.watch(snapshot("kv"), resume_token=frame.resume_token) as again:
        assert await again.data(1) == [b"1"]


async def test_age_is_unbounded_if_switched_off() -> None:
    async with served_delivery() as cluster:
        await log_topic(cluster.store)
        async with cluster.watch(tail("log"), heartbeat_ms=60_000) as watch:
            await watch.kind("caught_up")
            await cluster.clock.pass_time(2 * AGE_MS / 1000)
            assert cluster.role.stats.watch_count == 1


@pytest.mark.parametrize("age_ms", [-1, 1, 999, 86_400_001])
def test_age_out_of_its_bounds_is_refused(age_ms: int) -> None:
    with pytest.raises(SettingsError, match="STREAM_AGE_MS_MAX"):
        DeliverySettings(stream_age_ms_max=age_ms)


@pytest.mark.parametrize("seed", range(6))
async def test_progress_never_comes_before_a_record_that_it_covers(seed: int) -> None:
    random = Random(seed)
    async with served_delivery(seed=seed, topic_buffer_bytes=random.choice((0, 2_000, 1 << 20))) as cluster:
        for name in ("one", "two"):
            await kv_topic(cluster.store, name)
        finished = False

        async def write() -> None:
            nonlocal finished
            for number in range(120):
                key = random.choice(("seen/", "hidden/")) + str(number)
                await append(cluster.store, random.choice(("one", "two")), puts((key, "x" * random.choice((1, 900)))))
                cluster.clock.advance(random.random() / 10)
                for _ in range(random.randrange(8)):
                    await asyncio.sleep(0)
            finished = True
            while True:
                cluster.clock.advance(0.1)
                await asyncio.sleep(0)

        heads: dict[str, int] = {}
        covered = {"one": 0, "two": 0}
        got: dict[str, list[int]] = {"one": [], "two": []}
        progress = 0
        wanted = [earliest("one", b"seen/"), earliest("two", b"seen/")]
        async with cluster.watch(*wanted, heartbeat_ms=100) as watch, asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            while not heads or any(covered[name] < seq for name, seq in heads.items()):
                frame = await watch.next()
                if finished and not heads:
                    heads = {name: (await cluster.store.get_topic(name)).head_seq for name in covered}
                if not frame.topic:
                    continue
                for record in frame.rows.records:
                    assert record.seq > covered[frame.topic], "progress had covered it"
                    got[frame.topic].append(record.seq)
                progress += frame.WhichOneof("frame") == "progress"
                assert frame.cursor.seq > covered[frame.topic]
                covered[frame.topic] = frame.cursor.seq
                if heads and not progress and all(covered[name] >= seq for name, seq in heads.items()):
                    # It has received all records, so that only progress can report new ones that are hidden from it.
                    hidden = await append(cluster.store, "one", puts(("hidden/last", "x")))
                    heads["one"] = hidden.last_seq
            writing.cancel()
        assert progress
        for name, seqs in got.items():
            records = [
                record.seq
                for item in (await cluster.store.read_records(name, after_seq=0, limit=10_000)).items
                for record in item.to_rows()  # type: ignore[union-attr]  # nothing is lost here
                if (record.key or b"").startswith(b"seen/")
            ]
            assert seqs == records
