"""Filters and options of a subscriber: tag, node, op, metadata only, updates only.

They hold for live records, for reads below the ring and in snapshots alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Op, Record
from eddyline.core.transport.status import unwrap
from eddyline.delivery.feed.encode import NO_DATA
from eddyline.v1 import delivery_pb2 as pb
from eddyline.v1 import types_pb2 as types
from tests.support.delivery.role import ServedDelivery, at, earliest, served_delivery, snapshot, tail
from tests.support.models.filter_spec import Wish
from tests.support.store.simulated import append, kv_topic, log_topic, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eddyline.core.model.read import ReadResult

RECORDS = [
    Record(op=Op.PUT, key=b"a", data=b"1", tag="red", node="near"),
    Record(op=Op.PUT, key=b"b", data=b"", tag="blue", node="far"),
    Record(op=Op.PUT, key=b"c", data=None, node="near"),
    Record(op=Op.DELETE, key=b"a", tag="red"),
    Record(op=Op.PURGE, key=b"d"),
    Record(op=Op.PUT, key=b"e", data=b"12345", tag="red", node="far"),
]
WISHES = {
    "tags": (Wish(tags=("red",)), [1, 4, 6]),
    "two tags": (Wish(tags=("red", "blue", "none")), [1, 2, 4, 6]),
    "nodes": (Wish(exclude_nodes=("near",)), [2, 4, 5, 6]),
    "deletes": (Wish(ignore_deletes=True), [1, 2, 3, 6]),
    "all": (Wish((b"a", b"e"), ("red",), ("near",), ignore_deletes=True), [6]),
}


@pytest.fixture(name="cluster")
async def _cluster() -> AsyncIterator[ServedDelivery]:
    async with served_delivery() as cluster:
        yield cluster


@pytest.mark.parametrize("live", [True, False], ids=["live", "below the ring"])
@pytest.mark.parametrize(("wish", "seqs"), WISHES.values(), ids=WISHES)
async def test_hidden_records_are_not_sent(cluster: ServedDelivery, wish: Wish, seqs: list[int], live: bool) -> None:
    await kv_topic(cluster.store)
    wanted = wish.topic("kv")
    wanted.point = pb.START_POINT_EARLIEST
    if not live:
        await append(cluster.store, "kv", Batch.from_rows(RECORDS))
    async with cluster.watch(wanted) as watch:
        if live:
            await watch.kind("caught_up")
            await append(cluster.store, "kv", Batch.from_rows(RECORDS))
        assert [record.seq for record in (await watch.kind("rows")).rows.records] == seqs


async def test_records_hidden_below_the_ring_do_not_leave_the_store(
    cluster: ServedDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kv_topic(cluster.store)
    for _ in range(20):
        await append(cluster.store, "kv", Batch.from_rows(RECORDS))
    brought = 0
    read_records = cluster.wire.read_records

    async def counted(topic: str, **options: object) -> ReadResult:
        nonlocal brought
        result = await read_records(topic, **options)  # type: ignore[arg-type]
        brought += sum(item.count for item in result.items if isinstance(item, Batch))
        return result

    monkeypatch.setattr(cluster.wire, "read_records", counted)
    wanted = Wish(tags=("blue",)).topic("kv")
    wanted.point = pb.START_POINT_EARLIEST
    async with cluster.watch(wanted) as watch:
        await watch.until_kind("caught_up")
    assert brought == 20


@pytest.mark.parametrize(
    ("wish", "keys"),
    [
        (Wish(tags=("red",)), [b"e"]),
        (Wish(exclude_nodes=("near",)), [b"b", b"e"]),
        (Wish(ignore_deletes=True), [b"b", b"c", b"e"]),
    ],
)
async def test_snapshot_has_the_values_that_pass(cluster: ServedDelivery, wish: Wish, keys: list[bytes]) -> None:
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", Batch.from_rows(RECORDS))
    wanted = wish.topic("kv")
    wanted.point = pb.START_POINT_SNAPSHOT
    async with cluster.watch(wanted) as watch:
        end = await watch.until_kind("snapshot_end")
        assert [record.key for frame in watch.frames for record in frame.rows.records] == keys
        assert end.snapshot_end.count == len(keys)


async def test_topic_without_dedupe_node_does_not_hide_nodes(cluster: ServedDelivery) -> None:
    await cluster.store.create_topic("kv", Kind.KV, TopicConfig(dedupe_node=False))
    wanted = Wish(exclude_nodes=("near",)).topic("kv")
    wanted.point = pb.START_POINT_TAIL
    async with cluster.watch(wanted) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "kv", Batch.from_rows(RECORDS))
        assert len((await watch.kind("rows")).rows.records) == len(RECORDS)


@pytest.mark.parametrize("start", [tail("kv"), earliest("kv"), snapshot("kv")], ids=["live", "log", "snapshot"])
async def test_metadata_only_has_all_but_the_data_and_their_size(cluster: ServedDelivery, start: pb.WatchTopic) -> None:
    await kv_topic(cluster.store)
    wanted = pb.WatchTopic()
    wanted.CopyFrom(start)
    wanted.metadata_only = True
    live = start.point == pb.START_POINT_TAIL
    if not live:
        await append(cluster.store, "kv", Batch.from_rows(RECORDS))
    async with cluster.watch(wanted) as watch:
        if live:
            await watch.kind("caught_up")
            await append(cluster.store, "kv", Batch.from_rows(RECORDS))
        records_by_seq = {r.seq: r for r in (await watch.until_kind("rows")).rows.records}
    assert not any(record.HasField("data") for record in records_by_seq.values())
    assert (records_by_seq[2].data_bytes, records_by_seq[2].HasField("data_bytes")) == (0, True), "empty"
    assert not records_by_seq[3].HasField("data_bytes"), "absent"
    row = records_by_seq[6]
    assert (row.data_bytes, row.key, row.tag, row.node, row.op) == (5, b"e", "red", "far", types.OP_PUT)
    assert (row.version, row.ts_ms) == ((6).to_bytes(8, "big"), cluster.clock.now_ms())


async def test_metadata_only_in_columns(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    await append(cluster.store, "kv", Batch.from_rows(RECORDS))
    wanted = earliest("kv")
    wanted.metadata_only = True
    async with cluster.watch(wanted, format=types.BATCH_FORMAT_COLUMNS) as watch:
        columns = (await watch.kind("columns")).columns
    assert not columns.HasField("data")
    sizes = [int.from_bytes(columns.data_bytes[at : at + 4], "little") for at in range(0, 24, 4)]
    assert sizes == [1, 0, NO_DATA, NO_DATA, NO_DATA, 5]


async def test_updates_only_begins_with_new_records(cluster: ServedDelivery) -> None:
    epoch = await kv_topic(cluster.store)
    await append(cluster.store, "kv", Batch.from_rows(RECORDS))
    wanted = snapshot("kv")
    wanted.updates_only = True
    async with cluster.watch(wanted) as watch:
        token = (await watch.kind("caught_up")).resume_token
        await append(cluster.store, "kv", Batch.from_rows(RECORDS[:1]))
        assert [record.seq for record in (await watch.kind("rows")).rows.records] == [7]
    async with cluster.watch(wanted, resume_token=token) as watch:
        assert [record.seq for record in (await watch.kind("rows")).rows.records] == [7]
    by_cursor = at("kv", 7, epoch)
    by_cursor.updates_only = True
    async with cluster.watch(by_cursor, resume_token=token) as watch:
        await watch.kind("caught_up")


async def test_updates_only_of_a_log_is_its_tail(cluster: ServedDelivery) -> None:
    await log_topic(cluster.store)
    await append(cluster.store, "log", rows("before"))
    wanted = snapshot("log")
    wanted.updates_only = True
    async with cluster.watch(wanted) as watch:
        await watch.kind("caught_up")
        await append(cluster.store, "log", rows("after"))
        assert await watch.data(1) == [b"after"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tags": [f"{number}" for number in range(1001)]}, "tags"),
        ({"tags": ["x" * 257]}, "tags"),
        ({"tags": ["ä" * 129]}, "tags"),
        ({"exclude_nodes": [f"{number}" for number in range(1001)]}, "exclude_nodes"),
        ({"exclude_nodes": ["x" * 129]}, "exclude_nodes"),
        ({"on_gap": 3}, "on_gap"),
        ({"point": pb.START_POINT_EARLIEST, "updates_only": True}, "updates_only"),
        ({"ts_ms": 5, "updates_only": True}, "updates_only"),
        ({"revision": 5, "updates_only": True}, "updates_only"),
        ({"ts_ms": -1}, "ts_ms"),
        ({"revision": 0}, "revision"),
    ],
    ids=str,
)
async def test_filter_out_of_its_bounds_is_refused(
    cluster: ServedDelivery, changes: dict[str, object], field: str
) -> None:
    await kv_topic(cluster.store)
    error = unwrap(await cluster.refusal(pb.WatchTopic(topic="kv", **changes)))  # type: ignore[arg-type]
    assert (error.reason, error.metadata["field"]) == ("INVALID_ARGUMENT", f"topics[0].{field}")
    assert cluster.role.stats.watch_count == 0


async def test_token_is_bound_to_every_filter(cluster: ServedDelivery) -> None:
    await kv_topic(cluster.store)
    async with cluster.watch(tail("kv")) as watch:
        token = (await watch.kind("caught_up")).resume_token
    for changes in (
        {"tags": ["red"]},
        {"exclude_nodes": ["near"]},
        {"ignore_deletes": True},
        {"metadata_only": True},
        {"updates_only": True},
        {"on_gap": 2},
    ):
        wanted = pb.WatchTopic(topic="kv", **changes)
        assert unwrap(await cluster.refusal(wanted, resume_token=token)).reason == "RESUME_TOKEN_MISMATCH"
