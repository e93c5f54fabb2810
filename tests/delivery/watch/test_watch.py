"""Watches on loopback: starts, order, prefixes, caught_up, formats, positions of gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.source import SourceDefinition
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap
from eddyline.core.records.record import Gap, GapReason, Op, Record
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, at, earliest, served_delivery, snapshot, tail
from tests.support.store.simulated import append, kv_topic, log_topic, puts, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        yield cluster


async def test_watch_from_a_cursor_catches_up_and_continues_live(cluster: ServedDelivery) -> None:
    epoch = await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a", "b", "c"))
    async with cluster.watch(at("log", 1)) as watch:
        frame = await watch.kind("rows")
        assert [(record.seq, record.data) for record in frame.rows.records] == [(2, b"b"), (3, b"c")]
        assert frame.topic == "log"
        assert frame.cursor == types.Cursor(topic="log", epoch=epoch, seq=3)
        assert (await watch.kind("caught_up")).resume_token
        await append(cluster.store, "log", rows("d"))
        assert await watch.data(1) == [b"d"]


async def test_tail_has_only_records_after_the_call(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("before"))
    async with cluster.watch(tail("log")) as first, cluster.watch(tail("log")) as second:
        for watch in (first, second):
            await watch.kind("caught_up")
        await append(cluster.store, "log", rows("after"))
        for watch in (first, second):
            assert await watch.data(1) == [b"after"]


async def test_tail_on_a_followed_topic_has_no_record_acknowledged_before(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as first:
        await first.kind("caught_up")
        for number in range(20):
            await append(cluster.store, "log", rows(f"{number}"))
            async with cluster.watch(tail("log")) as second:
                await second.kind("caught_up")
                await append(cluster.store, "log", rows(f"after {number}"))
                assert await second.data(1) == [b"after %d" % number]


async def test_unset_start_is_the_tail(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("before"))
    request = tail("log")
    request.ClearField("point")
    async with cluster.watch(request) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("after"))
        assert await watch.data(1) == [b"after"]


async def test_earliest_has_the_whole_log(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a", "b"))
    async with cluster.watch(earliest("log")) as watch:
        assert await watch.data(2) == [b"a", b"b"]


async def test_caught_up_is_immediate_on_an_empty_topic(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await kv_topic(cluster.store)
    async with cluster.watch(earliest("log"), tail("kv", b"none")) as watch:
        frame = await watch.kind("caught_up")
        assert frame.topic == ""
        assert not frame.HasField("cursor")


async def test_caught_up_waits_for_the_heads_of_the_start_and_comes_once(cluster: ServedDelivery) -> None:
    for name in ("one", "two"):
        await log_topic(cluster.store, name)
        for number in range(50):
            await append(cluster.store, name, rows(f"{name} {number}" + "x" * 5000))
    async with cluster.watch(earliest("one"), earliest("two")) as watch:
        await watch.until_kind("caught_up")
        seqs = {
            name: [r.seq for f in watch.frames if f.topic == name for r in f.rows.records] for name in ("one", "two")
        }
        assert seqs == {"one": list(range(1, 51)), "two": list(range(1, 51))}
        await append(cluster.store, "one", rows("live"))
        assert await watch.data(1) == [b"live"]
        assert [frame.WhichOneof("frame") for frame in watch.frames].count("caught_up") == 1


async def test_caught_up_comes_even_if_the_filter_hides_every_record(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("a", "1"), ("b", "2")))
    async with cluster.watch(earliest("kv", b"z")) as watch:
        await watch.kind("caught_up")


async def test_prefixes_filter_by_key_and_hidden_records_move_the_cursor(cluster: ServedDelivery) -> None:
    epoch = await kv_topic(cluster.store)
    wanted = at("kv", 0, epoch, (b"a/", b"c/"))
    async with cluster.watch(wanted) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "kv", puts(("a/1", "1"), ("b/1", "2"), ("c/1", "3")))
        frame = await watch.kind("rows")
        assert [record.key for record in frame.rows.records] == [b"a/1", b"c/1"]
        await append(cluster.store, "kv", puts(("b/2", "4")))
        await cluster.until(lambda: cluster.role.budget.encoded_count == 2)
        cluster.clock.advance(10)
        assert (await watch.kind("progress")).cursor.seq == 4
        token = (await watch.kind("heartbeat")).resume_token
    reads = cluster.wire.read_count
    async with cluster.watch(wanted, resume_token=token) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "kv", puts(("c/2", "5")))
        frame = await watch.kind("rows")
        assert (frame.rows.records[0].seq, frame.cursor.seq) == (5, 5)
    assert cluster.wire.read_count == reads, "the token stood past the hidden record"


async def test_prefix_from_an_old_cursor_catches_up_during_writes(cluster: ServedDelivery) -> None:
    epoch = await kv_topic(cluster.store)
    number = 0

    async def write() -> None:
        nonlocal number
        number += 1
        await append(cluster.store, "kv", puts((f"busy/{number}", "x"), (f"seldom/{number}", "x")))

    for _ in range(50):
        await write()
    async with cluster.watch(at("kv", 10, epoch, (b"seldom/",))) as watch:
        seen: list[bytes] = []
        while (kind := (frame := await watch.next()).WhichOneof("frame")) != "caught_up":
            await write()
            if kind == "rows":
                seen += [record.key for record in frame.rows.records]
        behind = number
        await write()
        while f"seldom/{number}".encode() not in seen:
            seen += [record.key for record in (await watch.kind("rows")).rows.records]
    assert behind >= 50
    assert seen == [b"seldom/%d" % one for one in range(6, number + 1)]


async def test_columns_are_the_same_records(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a", "bc"))
    async with cluster.watch(earliest("log"), format=types.BATCH_FORMAT_COLUMNS) as watch:
        columns = (await watch.kind("columns")).columns
        assert (columns.count, columns.first_seq, columns.data.values) == (2, 1, b"abc")


async def test_versions_are_the_effective_ones(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a"))
    async with cluster.watch(earliest("log")) as watch:
        assert (await watch.kind("rows")).rows.records[0].version == (1).to_bytes(8, "big")


@pytest.mark.parametrize("live", [True, False], ids=["live", "by cursor"])
async def test_point_gap_is_sent_at_its_position(cluster: ServedDelivery, live: bool) -> None:
    await kv_topic(cluster.store)
    await cluster.store.put_source(SourceDefinition("source", "kv", "bucket"))
    lease = await cluster.store.acquire_lease("source", holder="me", lease_ms=5000)
    gap = Gap(0, 0, GapReason.SOURCE_GAP, source_identity=b"id", source_first=3, source_last=9)
    batch = Batch.from_rows(
        [
            Record(op=Op.PUT, key=b"a", data=b"1"),
            Record(op=Op.GAP, data=encode_gap(gap)),
            Record(op=Op.PUT, key=b"b", data=b"2"),
        ]
    )

    async def write() -> None:
        await cluster.store.apply_batch("source", fence=lease.fence, previous=b"", new=b"p", batch=batch)

    if not live:
        await write()
    async with cluster.watch(earliest("kv", b"b")) as watch:
        if live:
            await watch.kind("caught_up")
            await write()
        frame = await watch.kind("gap")
        assert (frame.gap.reason, frame.gap.seq, frame.cursor.seq) == (types.GAP_REASON_SOURCE_GAP, 2, 2)
        assert (frame.gap.source_first, frame.gap.source_last) == (3, 9)
        assert [record.key for record in (await watch.kind("rows")).rows.records] == [b"b"]


async def test_one_stream_at_the_store_and_one_encoding_for_equal_views(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    watches = [cluster.watch(tail("kv")) for _ in range(20)]
    narrow = [cluster.watch(tail("kv", b"k", b"k1")) for _ in range(5)]
    for watch in watches + narrow:
        await watch.kind("caught_up")
    for number in range(10):
        await append(cluster.store, "kv", puts((f"k{number}", "v")))
        for watch in watches + narrow:
            assert [record.seq for record in (await watch.kind("rows")).rows.records] == [number + 1]
    assert cluster.wire.follow_count == 1
    assert len(cluster.role.tails) == 1
    assert cluster.role.budget.encoded_count == 20, "10 frames, 2 views"
    assert cluster.wire.read_count == 0
    for watch in watches + narrow:
        watch.call.cancel()


async def test_topic_without_watches_is_unfollowed_after_a_while(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(tail("log")) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("a"))
        await watch.kind("rows")
    await cluster.until(lambda: cluster.role.stats.watch_count == 0)
    assert len(cluster.role.tails) == 1
    await cluster.clock.pass_time(61)
    assert len(cluster.role.tails) == 0
    assert cluster.role.budget.nbytes == 0


async def test_snapshot_and_log_topics_share_a_stream(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", puts(("a", "1")))
    async with cluster.watch(tail("log"), snapshot("kv")) as watch:
        await watch.until_kind("caught_up")
        kinds = [frame.WhichOneof("frame") for frame in watch.frames]
        assert kinds == ["heartbeat", "snapshot_begin", "rows", "snapshot_end", "caught_up"]


async def test_watch_catches_up_if_the_newest_records_were_deleted_before_they_were_sent(
    cluster: ServedDelivery,
) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a", "b"))
    async with cluster.watch(at("log", 2)) as watch:
        await watch.kind("caught_up")
        cluster.wire.cut()
        await cluster.until(lambda: not cluster.role.tails.up.is_set())
        await append(cluster.store, "log", rows("c"))
        await cluster.store.delete_records("log", before_seq=4)
        cluster.wire.mend()
        await cluster.until(cluster.role.tails.up.is_set, passing_s=0.1)
        async with cluster.watch(at("log", 2)) as other:
            await other.kind("caught_up")
        await append(cluster.store, "log", rows("d"))
        assert await watch.data(1) == [b"d"]


async def test_cursor_of_a_later_epoch_is_newer_than_the_token(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    async with cluster.watch(earliest("log")) as watch:
        token = (await watch.kind("caught_up")).resume_token
    await cluster.store.delete_topic("log")
    epoch = await log_topic(cluster.store)
    await append(cluster.store, "log", rows("a", "b"))
    async with cluster.watch(at("log", 1, epoch), resume_token=token) as watch:
        assert await watch.data(1) == [b"b"]
