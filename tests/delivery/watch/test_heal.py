"""Healed gaps: the gap, then the current values at one point, then the log from there, in one call."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.delivery.resume_token import Cursor
from eddyline.delivery.watch.request import TopicRequest, WatchRequest
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import log_pb2
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, at, served_delivery, snapshot, tail
from tests.support.hang import HANG_S
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

CAP = 4


def healed(wanted: pb.WatchTopic) -> pb.WatchTopic:
    """Return the same topic with its gaps healed."""
    wanted.on_gap = log_pb2.GAP_POLICY_HEAL
    return wanted


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        yield cluster


async def capped(cluster: ServedDelivery, name: str = "kv", kind: Kind = Kind.KV) -> int:
    """Make a topic whose log retains its last records; ten were written to three keys."""
    epoch = (await cluster.store.create_topic(name, kind, TopicConfig(cap_records=CAP))).epoch
    for number in range(10):
        await append(cluster.store, name, puts((f"k{number % 3}", f"{number}")))
    return epoch


async def test_expired_cursor_gives_the_values_and_then_the_changes_in_one_call(cluster: ServedDelivery) -> None:
    epoch = await capped(cluster)
    async with cluster.watch(healed(at("kv", 2, epoch))) as watch:
        gap = await watch.kind("gap")
        assert (gap.gap.reason, gap.gap.first_seq, gap.gap.last_seq) == (types.GAP_REASON_CAP, 3, 6)
        assert gap.cursor == types.Cursor(topic="kv", epoch=epoch, seq=2), "before the gap until it is healed"
        assert (await watch.kind("snapshot_begin")).snapshot_begin.fold_seq == 10
        entries = await watch.kind("rows")
        assert [(r.key, r.data) for r in entries.rows.records] == [(b"k0", b"9"), (b"k1", b"7"), (b"k2", b"8")]
        assert entries.cursor.seq == 2
        end = await watch.kind("snapshot_end")
        assert end.cursor == types.Cursor(topic="kv", epoch=epoch, seq=10)
        await watch.kind("caught_up")
        await append(cluster.store, "kv", puts(("k0", "live")))
        live = await watch.kind("rows")
        assert (live.cursor.seq, live.rows.records[0].data) == (11, b"live")


async def test_a_gap_is_reported_and_not_healed_by_default(cluster: ServedDelivery) -> None:
    epoch = await capped(cluster)
    async with cluster.watch(at("kv", 2, epoch)) as watch:
        assert (await watch.kind("gap")).cursor.seq == 6
        assert [record.seq for record in (await watch.kind("rows")).rows.records] == [7, 8, 9, 10]
        await watch.kind("caught_up")


async def test_log_topic_has_no_fold_to_heal_with(cluster: ServedDelivery) -> None:
    epoch = (await cluster.store.create_topic("log", Kind.LOG, TopicConfig(cap_records=CAP))).epoch
    for number in range(10):
        await append(cluster.store, "log", rows(f"{number}"))
    async with cluster.watch(healed(at("log", 2, epoch))) as watch:
        assert (await watch.kind("gap")).cursor.seq == 6
        assert await watch.data(CAP) == [b"6", b"7", b"8", b"9"]


async def test_stream_that_breaks_while_healing_is_healed_again_by_cursor_and_by_token(cluster: ServedDelivery) -> None:
    epoch = await capped(cluster)
    async with cluster.watch(healed(at("kv", 2, epoch))) as watch:
        await watch.kind("gap")
        cursor = (await watch.kind("snapshot_begin")).cursor
    async with cluster.watch(healed(at("kv", cursor.seq, cursor.epoch))) as watch:
        await watch.kind("gap")
        await watch.kind("snapshot_begin")
    request = WatchRequest((TopicRequest("kv", Cursor("kv", epoch, 2), heals=True),), heartbeat_s=0.1)
    async with cluster.role.watches.open(request) as subscriber, asyncio.timeout(HANG_S):
        frames = subscriber.frames()
        assert pb.WatchTopicsResponse.FromString(await anext(frames)).HasField("gap")
        cluster.clock.advance(1)
        heartbeat = pb.WatchTopicsResponse.FromString(await anext(frames))
        assert heartbeat.HasField("heartbeat")
        await frames.aclose()
    async with cluster.watch(healed(at("kv", 2, epoch)), resume_token=heartbeat.resume_token) as watch:
        await watch.kind("snapshot_begin")  # the gap was sent before the token
        assert (await watch.until_kind("snapshot_end")).cursor.seq == 10


async def test_gap_in_a_live_stream_is_healed(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    await cluster.store.put_source(SourceDefinition("source", "kv", "bucket"))
    lease = await cluster.store.acquire_lease("source", holder="me", lease_ms=5000)
    lost = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3, source_last=9)
    first = Batch.from_rows([Record(op=Op.PUT, key=b"a", data=b"1")])
    then = Batch.from_rows([Record(op=Op.GAP, data=encode_gap(lost)), Record(op=Op.PUT, key=b"b", data=b"2")])
    await cluster.store.apply_batch("source", fence=lease.fence, previous=b"", new=b"p", batch=first)
    async with cluster.watch(healed(tail("kv"))) as watch:
        await watch.kind("caught_up")
        await cluster.store.apply_batch("source", fence=lease.fence, previous=b"p", new=b"q", batch=then)
        gap = await watch.kind("gap")
        assert (gap.gap.seq, gap.cursor.seq) == (2, 1)
        await watch.kind("snapshot_begin")
        assert [record.key for record in (await watch.kind("rows")).rows.records] == [b"a", b"b"]
        assert (await watch.kind("snapshot_end")).cursor.seq == 3


async def test_recreated_topic_is_healed_and_its_cursors_stay_with_the_old_epoch_meanwhile(
    cluster: ServedDelivery,
) -> None:
    old = await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("stale", "1")))
    await cluster.store.delete_topic("kv")
    new = await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("fresh", "1")))
    async with cluster.watch(healed(at("kv", 1, old))) as watch:
        gap = await watch.kind("gap")
        assert (gap.gap.reason, gap.cursor.epoch) == (types.GAP_REASON_RECREATED, old)
        assert (await watch.kind("snapshot_begin")).cursor.epoch == old
        assert [record.key for record in (await watch.kind("rows")).rows.records] == [b"fresh"]
        assert (await watch.kind("snapshot_end")).cursor == types.Cursor(topic="kv", epoch=new, seq=1)
        await watch.kind("caught_up")


async def test_topic_recreated_without_fold_in_mid_stream_is_a_gap(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    async with cluster.watch(healed(snapshot("kv"))) as watch:
        await watch.until_kind("caught_up")
        cluster.wire.cut()
        await cluster.until(cluster.role.tails.down.is_set)
        await cluster.store.delete_topic("kv")
        await log_topic(cluster.store, "kv")
        await append(cluster.store, "kv", rows("a"))
        cluster.wire.mend()
        await cluster.until(cluster.role.tails.up.is_set, passing_s=0.01)
        assert (await watch.kind("gap")).gap.reason == types.GAP_REASON_RECREATED
        assert await watch.data(1) == [b"a"]


async def test_each_of_many_expired_cursors_gets_one_gap(cluster: ServedDelivery) -> None:
    epoch = await capped(cluster)
    request = WatchRequest((TopicRequest("kv", Cursor("kv", epoch, 1)),))
    async with AsyncExitStack() as stack, asyncio.timeout(HANG_S):
        streams = [await stack.enter_async_context(_opened(cluster, request)) for _ in range(600)]
        for frames in streams:
            kinds = [await _kind(frames) for _ in range(3)]
            assert kinds == ["gap", "rows", "caught_up"]
        await append(cluster.store, "kv", puts(("live", "1")))
        for frames in streams:
            assert await _kind(frames) == "rows"


@asynccontextmanager
async def _opened(cluster: ServedDelivery, request: WatchRequest) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    async with cluster.role.watches.open(request) as subscriber, aclosing(subscriber.frames()) as frames:
        yield frames


async def _kind(frames: AsyncGenerator[bytes, None]) -> str | None:
    return pb.WatchTopicsResponse.FromString(await anext(frames)).WhichOneof("frame")
