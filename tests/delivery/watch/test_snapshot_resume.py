"""Interrupted snapshots continue after the last key, whether the stream broke or only the scan."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.delivery.fetch.scan_slots import SNAPSHOT_IDLE_S_ALONE
from eddyline.delivery.rpc.watch import request_from_pb
from eddyline.delivery.watch.request import StartPoint, TopicRequest, WatchRequest
from eddyline.v1 import delivery_pb2 as pb
from tests.support.delivery.role import ServedDelivery, served_delivery, snapshot
from tests.support.delivery.slots import held_count
from tests.support.hang import HANG_S
from tests.support.manual_clock import settle
from tests.support.models.filter_spec import Wish
from tests.support.models.subscriber_view import Entry, Head, Judge, Opened, Started, View, lossless
from tests.support.store.simulated import all_rows, append, kv_topic, puts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ENTRIES = 60
WHOLE = Wish()
VALUE = "x" * 6_000
"""360 kB: two pages of the store, about six frames."""


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        await kv_topic(cluster.store)
        await fill(cluster)
        yield cluster


async def fill(cluster: ServedDelivery) -> None:
    await append(cluster.store, "kv", puts(*[(f"{number:02}", VALUE) for number in range(ENTRIES)]))


@dataclass
class BrokenOff:
    """Frames of an interrupted stream, and its last token."""

    frames: list[pb.WatchTopicsResponse] = field(default_factory=list)
    token: bytes = b""


async def broken_off(cluster: ServedDelivery, frames: int, *, wanted: pb.WatchTopic | None = None) -> BrokenOff:
    """Take `count` frames of one stream, then open one with its token; the wire reads none ahead of its reader."""
    request = pb.WatchTopicsRequest(topics=[wanted or snapshot("kv")], heartbeat_ms=100, resume_snapshots=True)
    got = BrokenOff()
    async with (
        cluster.role.watches.open(request_from_pb(request)) as subscriber,
        aclosing(subscriber.frames()) as stream,
        asyncio.timeout(HANG_S),
    ):
        while not got.token:
            if len(got.frames) >= frames:
                cluster.clock.advance(0.2)
            frame = pb.WatchTopicsResponse.FromString(await anext(stream))
            got.frames.append(frame)
            got.token = frame.resume_token
    return got


async def check(cluster: ServedDelivery, *streams: list[pb.WatchTopicsResponse], wish: Wish = WHOLE) -> Judge:
    """Compare the frames of a topic's streams, in order, with its log."""
    head = Head((await cluster.store.get_topic("kv")).epoch, 0)
    entries: list[Entry] = [Started(pb.START_POINT_SNAPSHOT, head, head)]
    for frames in streams:
        entries += [Opened(), *(frame for frame in frames if frame.topic)]
    records = await all_rows(cluster.store, "kv")
    judge = Judge(View("it", "kv", wish, resumes=True, entries=entries), {head.epoch: lossless(records, Kind.KV)})
    judge.go()
    assert judge.snapshots
    return judge


async def change(cluster: ServedDelivery) -> None:
    """Write, delete and add keys on both sides of any position."""
    pairs: list[tuple[str, str | None]] = [("03", "new"), ("05", None), ("00a", "added")]
    pairs += [("45", "new"), ("50", None), ("59a", "added"), ("03", "newest"), ("45", None)]
    await append(cluster.store, "kv", puts(*pairs))


@pytest.mark.parametrize("frames", range(2, 8))
async def test_token_within_a_snapshot_continues_after_the_last_key(cluster: ServedDelivery, frames: int) -> None:
    watch = await broken_off(cluster, frames)
    assert not any(frame.HasField("snapshot_end") for frame in watch.frames)
    last_key = watch.frames[-2].rows.records[-1].key
    await change(cluster)
    async with cluster.watch(snapshot("kv"), resume_token=watch.token, resume_snapshots=True) as again:
        resumed = (await again.kind("snapshot_resume")).snapshot_resume
        assert resumed == pb.SnapshotResume(fold_seq=ENTRIES, after_key=last_key)
        await again.until_kind("caught_up")
        assert (await check(cluster, watch.frames, again.frames)).resumed == 1
        end = next(frame.snapshot_end for frame in again.frames if frame.HasField("snapshot_end"))
        entries = [r for f in again.frames for r in f.rows.records if r.key > last_key]
        assert (end.fold_seq, end.count) == (ENTRIES + 8, len(entries))
        await append(cluster.store, "kv", puts(("live", "1")))
        assert (await again.kind("rows")).cursor.seq == ENTRIES + 9


async def test_token_without_resume_snapshots_starts_over(cluster: ServedDelivery) -> None:
    watch = await broken_off(cluster, 3)
    async with cluster.watch(snapshot("kv"), resume_token=watch.token) as again:
        await again.kind("snapshot_begin")
        assert (await again.until_kind("snapshot_end")).snapshot_end.count == ENTRIES


@pytest.mark.parametrize("filtered", ["tags", "exclude_nodes", "ignore_deletes"])
async def test_filter_by_more_than_the_key_starts_over(filtered: str) -> None:
    async with served_delivery() as cluster:
        await kv_topic(cluster.store)
        rows = [
            Record(op=Op.PUT, key=b"%02d" % number, data=VALUE.encode(), tag="red", node="near")
            for number in range(ENTRIES)
        ]
        await append(cluster.store, "kv", Batch.from_rows(rows))
        wish = {
            "tags": Wish(tags=("red",)),
            "exclude_nodes": Wish(exclude_nodes=("far",)),
            "ignore_deletes": Wish(ignore_deletes=True),
        }[filtered]
        wanted = wish.topic("kv")
        wanted.point = pb.START_POINT_SNAPSHOT
        watch = await broken_off(cluster, 3, wanted=wanted)
        changed = [
            Record(op=Op.PUT, key=b"01", data=b"hidden", tag="blue", node="far"),
            Record(op=Op.DELETE, key=b"02"),
        ]
        await append(cluster.store, "kv", Batch.from_rows(changed))
        async with cluster.watch(wanted, resume_token=watch.token, resume_snapshots=True) as again:
            await again.kind("snapshot_begin")
            await again.until_kind("caught_up")
            await check(cluster, watch.frames, again.frames, wish=wish)


async def test_any_loss_since_then_restarts_the_snapshot(cluster: ServedDelivery) -> None:
    await cluster.store.delete_topic("kv")
    await kv_topic(cluster.store)
    await cluster.store.put_source(SourceDefinition("source", "kv", "bucket"))
    lease = await cluster.store.acquire_lease("source", holder="me", lease_ms=5000)
    rows = [Record(op=Op.PUT, key=b"%02d" % number, data=VALUE.encode()) for number in range(ENTRIES)]
    lost = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3, source_last=9)
    then = [Record(op=Op.GAP, data=encode_gap(lost)), Record(op=Op.PUT, key=b"00", data=b"new")]
    await cluster.store.apply_batch("source", fence=lease.fence, previous=b"", new=b"p", batch=Batch.from_rows(rows))
    watch = await broken_off(cluster, 3)
    await cluster.store.apply_batch("source", fence=lease.fence, previous=b"p", new=b"q", batch=Batch.from_rows(then))
    async with cluster.watch(snapshot("kv"), resume_token=watch.token, resume_snapshots=True) as again:
        await again.until_kind("snapshot_end")
        kinds = [frame.WhichOneof("frame") for frame in again.frames]
        assert kinds[:2] == ["snapshot_resume", "snapshot_begin"]
        assert again.frames[-1].snapshot_end.count == ENTRIES


async def test_interrupted_scan_continues_in_the_same_stream(cluster: ServedDelivery) -> None:
    cluster.wire.pages_until_cut = 1
    async with cluster.watch(snapshot("kv"), resume_snapshots=True) as watch:
        await cluster.until(lambda: cluster.wire.pages_until_cut is None, passing_s=0.001)
        await change(cluster)
        while not (watch.frames and watch.frames[-1].HasField("snapshot_end")):
            await settle()
            cluster.clock.advance(0.1)
            await watch.next()
        await check(cluster, watch.frames)
        kinds = [frame.WhichOneof("frame") for frame in watch.frames]
        assert (kinds.count("snapshot_begin"), kinds.count("snapshot_resume")) == (1, 1)
    assert held_count(cluster.role.slots) == 0


async def test_stalled_reader_continues_at_its_position(cluster: ServedDelivery) -> None:
    request = WatchRequest((TopicRequest("kv", StartPoint.SNAPSHOT),), heartbeat_s=600, resume_snapshots=True)
    async with cluster.role.watches.open(request) as subscriber:
        frames = subscriber.frames()
        came: list[pb.WatchTopicsResponse] = []
        kinds: list[str | None] = []
        while "snapshot_end" not in kinds:
            came.append(pb.WatchTopicsResponse.FromString(await anext(frames)))
            kinds.append(came[-1].WhichOneof("frame"))
            if kinds == ["snapshot_begin", "rows", "rows"]:
                cluster.clock.advance(SNAPSHOT_IDLE_S_ALONE + 0.1)
                await settle()
                assert held_count(cluster.role.slots) == 0
                await change(cluster)
        await frames.aclose()
    await check(cluster, came)
    assert kinds[:5] == ["snapshot_begin", "rows", "rows", "snapshot_resume", "rows"]
    assert kinds.count("snapshot_begin") == 1
    await cluster.until(lambda: held_count(cluster.role.slots) == 0)
    assert cluster.wire.open_scans == 0


async def test_log_that_no_longer_reaches_back_restarts_the_snapshot() -> None:
    async with served_delivery() as cluster:
        await cluster.store.create_topic("kv", Kind.KV, TopicConfig(cap_records=ENTRIES))
        await fill(cluster)
        watch = await broken_off(cluster, 3)
        await fill(cluster)
        await fill(cluster)
        async with cluster.watch(snapshot("kv"), resume_token=watch.token, resume_snapshots=True) as again:
            await again.until_kind("snapshot_end")
            kinds = [frame.WhichOneof("frame") for frame in again.frames]
            assert kinds[:2] == ["snapshot_resume", "snapshot_begin"]
            assert again.frames[-1].snapshot_end == pb.SnapshotEnd(fold_seq=3 * ENTRIES, count=ENTRIES)


async def test_topic_recreated_meanwhile_restarts_the_snapshot(cluster: ServedDelivery) -> None:
    watch = await broken_off(cluster, 3)
    await cluster.store.delete_topic("kv")
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("only", "1")))
    async with cluster.watch(snapshot("kv"), resume_token=watch.token, resume_snapshots=True) as again:
        await again.kind("snapshot_begin")
        assert (await again.until_kind("snapshot_end")).snapshot_end.count == 1
