"""Snapshots: current values at one point, then changes, without gap or duplicate."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import grpc
import pytest

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.transport.status import unwrap
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, Watch, served_delivery, snapshot
from tests.support.manual_clock import settle
from tests.support.models.subscriber_fold import Folded
from tests.support.store.simulated import append, kv_topic, log_topic, puts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.store.shard.shard import Shard

KEYS = 40


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        yield cluster


async def test_empty_snapshot_ends_at_once(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    async with cluster.watch(snapshot("kv")) as watch:
        await watch.kind("snapshot_begin")
        assert (await watch.kind("snapshot_end")).snapshot_end == pb.SnapshotEnd(fold_seq=0, count=0)
        await watch.kind("caught_up")
        await append(cluster.store, "kv", puts(("a", "1")))
        assert await watch.data(1) == [b"1"]


async def test_snapshot_has_the_live_values_and_the_log_continues_after_it(cluster: ServedDelivery) -> None:
    epoch = await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("a", "old"), ("b", "1"), ("c", "2")))
    await append(cluster.store, "kv", puts(("a", "new"), ("b", None)))
    async with cluster.watch(snapshot("kv")) as watch:
        begin = await watch.kind("snapshot_begin")
        assert begin.snapshot_begin.fold_seq == 5
        assert begin.cursor == types.Cursor(topic="kv", epoch=epoch, seq=0)
        entries = await watch.kind("rows")
        assert [(record.key, record.data, record.seq) for record in entries.rows.records] == [
            (b"a", b"new", 4),
            (b"c", b"2", 3),
        ]
        assert entries.cursor.seq == 0, "a cursor within a snapshot does not move"
        end = await watch.kind("snapshot_end")
        assert end.snapshot_end == pb.SnapshotEnd(fold_seq=5, count=2)
        assert end.cursor.seq == 5
        await watch.kind("caught_up")
        await append(cluster.store, "kv", puts(("d", "3")))
        assert (await watch.kind("rows")).cursor.seq == 6


@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        ((b"a/",), [b"a/1", b"a/2"]),
        ((b"a/1", b"c"), [b"a/1", b"c"]),
        ((b"x",), []),
        ((b"",), [b"a/1", b"a/2", b"b", b"c"]),
    ],
)
async def test_snapshot_keeps_to_its_prefixes(
    cluster: ServedDelivery, prefixes: tuple[bytes, ...], expected: list[bytes]
) -> None:
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("a/1", "1"), ("a/2", "2"), ("b", "3"), ("c", "4")))
    async with cluster.watch(snapshot("kv", *prefixes)) as watch:
        end = await watch.until_kind("snapshot_end")
        assert [record.key for frame in watch.frames for record in frame.rows.records] == expected
        assert end.snapshot_end.count == len(expected)


@pytest.mark.parametrize("op", [Op.DELETE, Op.PURGE])
async def test_get_list_and_watch_agree_on_a_deleted_key(cluster: ServedDelivery, op: Op) -> None:
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("gone", "1"), ("kept", "2")))
    await append(cluster.store, "kv", Batch.from_rows([Record(op=op, key=b"gone")]))
    page = await cluster.store.batch_get_entries("kv", [b"gone", b"kept"])
    assert [entry is not None for entry in page.entries] == [False, True]
    listed = [page.batch.to_rows() async for page in cluster.store.range_entries("kv") if page.batch is not None]
    assert [record.key for rows in listed for record in rows] == [b"kept"]
    async with cluster.watch(snapshot("kv")) as watch:
        await watch.kind("snapshot_begin")
        assert [record.key for record in (await watch.kind("rows")).rows.records] == [b"kept"]
        assert (await watch.kind("snapshot_end")).snapshot_end.count == 1


async def test_snapshot_of_a_log_is_refused(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    error = await cluster.refusal(snapshot("log"))
    assert (error.code(), unwrap(error).reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_KV")


async def test_heartbeats_continue_while_a_snapshot_waits_for_the_store(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    cluster.wire.reads_open.clear()
    async with cluster.watch(snapshot("kv"), heartbeat_ms=100) as watch:
        await cluster.until(lambda: cluster.role.stats.watch_count == 1)
        await cluster.until(lambda: bool(watch.frames) or cluster.clock.pending > 0)
        await settle()
        cluster.clock.advance(0.2)
        token = (await watch.kind("heartbeat")).resume_token
        cluster.wire.reads_open.set()
        await watch.until_kind("caught_up")
    async with cluster.watch(snapshot("kv"), resume_token=token) as watch:
        await watch.kind("snapshot_begin")


async def test_snapshot_starts_over_when_the_store_stops_within_it(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    for first in range(0, 1200, 100):
        await append(cluster.store, "kv", puts(*[(f"{number:04}", "v") for number in range(first, first + 100)]))
    cluster.wire.pages_until_cut = 1
    async with cluster.watch(snapshot("kv")) as watch, asyncio.TaskGroup() as tasks:
        state = Folded()
        passing = tasks.create_task(pass_time(cluster))
        while not state.ended:
            state.take(await watch.next())
            begun_count = [frame.WhichOneof("frame") for frame in watch.frames].count("snapshot_begin")
            if begun_count >= 2:
                passing.cancel()  # time ran for the retry; a reader slower than it would have to begin again
        assert begun_count >= 2
        assert sorted(state.values) == [b"%04d" % number for number in range(1200)]


async def pass_time(cluster: ServedDelivery) -> None:
    while True:
        cluster.clock.advance(0.05)
        await asyncio.sleep(0)


async def write(store: Shard, random: Random, oracle: dict[bytes, bytes], count: int) -> None:
    """Put and delete keys at random, with pauses of random length."""
    for number in range(count):
        pairs: list[tuple[str, str | None]] = []
        for _ in range(random.randint(1, 4)):
            key = f"k{random.randrange(KEYS)}"
            value = None if random.random() < 0.25 else f"{number}-{len(pairs)}" + "x" * random.choice((1, 200, 3000))
            pairs.append((key, value))
            if value is None:
                oracle.pop(key.encode(), None)
            else:
                oracle[key.encode()] = value.encode()
        await append(store, "kv", puts(*pairs))
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)


async def read(watch: Watch, state: Folded, head: int) -> None:
    while state.within or not state.ended or state.seq < head:
        state.take(await watch.next())


@pytest.mark.parametrize("seed", range(12))
async def test_snapshot_then_log_during_writes_has_no_gap_and_no_duplicate(seed: int) -> None:
    random = Random(seed)
    ring_bytes = random.choice((0, 4_000, 1 << 20))
    async with served_delivery(seed=seed, topic_buffer_bytes=ring_bytes) as cluster:
        await kv_topic(cluster.store)
        oracle: dict[bytes, bytes] = {}
        await write(cluster.store, random, oracle, random.randrange(30))
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(write(cluster.store, random, oracle, 60))
            watches: list[Watch] = []
            states = [Folded() for _ in range(4)]
            for _ in states:
                watches.append(cluster.watch(snapshot("kv")))
                await settle(random.randrange(30))
            await writer
            head = (await cluster.store.get_topic("kv")).head_seq
            for watch, state in zip(watches, states, strict=True):
                await read(watch, state, head)
        for watch, state in zip(watches, states, strict=True):
            assert state.values == oracle
            watch.call.cancel()
