"""The client against a whole store: topics, appends, reads, keys, ranges; and finding the cluster."""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import Client, connect
from eddyline.client.transport.topology import Topology
from eddyline.client.watch.events import Position
from eddyline.core.errors import (
    CursorAhead,
    HeadMismatch,
    InvalidConfig,
    NotKv,
    NotReady,
    TopicExists,
    TopicNotFound,
    VersionMismatch,
)
from eddyline.core.model.read import RecordFilter
from eddyline.core.model.topic import ConfigChange, Discard, Durability, Kind, TopicConfig
from eddyline.core.records.record import Gap, GapReason, MetaEntry, Op, Record
from tests.support.clients.clients import client_at, client_of
from tests.support.store.served import served_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@asynccontextmanager
async def client_of_a_store(data: Path) -> AsyncIterator[Client]:
    async with served_store(data) as store, client_of(store.address, random_source=random.Random(1)) as client:
        yield client


def put(key: bytes, data: bytes | None = b"v") -> Record:
    return Record(op=Op.PUT, key=key, data=data)


async def test_topics_are_created_read_listed_and_deleted(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        made = await client.create_topic("orders", Kind.KV, TopicConfig(Durability.FSYNC, 5_000))
        await client.create_topic("other", Kind.LOG)
        assert (made.kind, made.config) == (Kind.KV, TopicConfig(Durability.FSYNC, 5_000))
        assert await client.get_topic("orders") == made
        assert [topic.name async for topic in client.list_topics("or")] == ["orders"]
        with pytest.raises(TopicExists):
            await client.create_topic("orders", Kind.LOG)
        assert await client.delete_topic("orders") == made.epoch
        with pytest.raises(TopicNotFound):
            await client.get_topic("orders")


async def test_every_field_of_a_record_comes_back(tmp_path: Path) -> None:
    record = Record(
        op=Op.PUT,
        source_ts_ns=5,
        key=b"\xff",
        data=b"",
        tag="tag",
        node="node",
        meta=(MetaEntry("a", b"1"), MetaEntry("a", b"2")),
    )
    async with client_of_a_store(tmp_path) as client:
        await client.append("kv", [record], create=Kind.KV)
        (got,) = [item async for item in client.read("kv")]
        assert isinstance(got, Record)
        assert got._replace(seq=0, ts_ms=0, version=b"") == record
        assert got.version == (1).to_bytes(8, "big")
        assert await client.get("kv", b"\xff") == got


async def test_append_with_a_key_is_done_once(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        first = await client.append("log", [Record(data=b"1")], idempotency_key="k", create=Kind.LOG)
        again = await client.append("log", [Record(data=b"1")], idempotency_key="k", create=Kind.LOG)
        assert (again.first_seq, again.deduplicated) == (first.first_seq, True)
        assert (await client.get_topic("log")).head_seq == 1


async def test_preconditions_are_checked(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("kv", [put(b"a")], create=Kind.KV)
        with pytest.raises(HeadMismatch):
            await client.append("kv", [put(b"a")], expected_head_seq=0)
        with pytest.raises(VersionMismatch):
            await client.append("kv", [put(b"a")], expected_versions={b"a": b""})
        await client.append("kv", [put(b"b")], expected_head_seq=1, expected_versions={b"b": b""})


async def test_read_has_a_limit_a_filter_and_a_start(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("kv", [put(b"k%d" % number) for number in range(30)], create=Kind.KV)
        epoch = (await client.get_topic("kv")).epoch

        async def seqs(**options: object) -> list[int]:
            return [item.seq async for item in client.read("kv", **options)]  # type: ignore[arg-type]

        assert await seqs() == [*range(1, 31)]
        assert await seqs(after=27) == [28, 29, 30]
        assert await seqs(after=Position(epoch, 5), limit=3) == [6, 7, 8]
        assert await seqs(record_filter=RecordFilter(key_prefixes=(b"k2",))) == [3, *range(21, 31)]
        with pytest.raises(CursorAhead):
            await seqs(after=31)


async def test_read_of_another_epoch_begins_with_a_gap(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("log", [Record(data=b"1")], create=Kind.LOG)
        epoch = (await client.get_topic("log")).epoch
        items = [item async for item in client.read("log", after=Position(epoch + 1, 1))]
        assert isinstance(items[0], Gap)
        assert (items[0].reason, items[0].new_epoch) == (GapReason.RECREATED, epoch)
        assert [item.seq for item in items[1:]] == [1]


async def test_read_that_follows_goes_on_with_what_comes(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("log", [Record(data=b"1")], create=Kind.LOG)
        items = client.read("log", follow=True)
        assert (await anext(items)).seq == 1
        await client.append("log", [Record(data=b"2")])
        assert (await anext(items)).seq == 2


async def test_keys_come_in_the_callers_order_and_ranges_in_byte_order(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("kv", [put(b"b"), put(b"a"), put(b"c"), put(b"ab")], create=Kind.KV)
        await client.append("kv", [Record(op=Op.DELETE, key=b"c")])
        page = await client.get_many("kv", [b"c", b"a", b"nothing"])
        assert [entry and entry.key for entry in page.entries] == [None, b"a", None]
        assert page.state.fold_seq == 5
        assert await client.get("kv", b"c") is None
        assert [entry.key async for entry in client.range("kv")] == [b"a", b"ab", b"b"]
        assert [entry.key async for entry in client.range("kv", key_prefix=b"a", after_key=b"a")] == [b"ab"]
        assert [entry.key async for entry in client.range("kv", limit=1)] == [b"a"]


async def test_many_keys_come_as_rows_or_as_one_batch(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("kv", [put(b"%d" % number) for number in range(50)], create=Kind.KV)
        keys = [b"7", b"nothing", b"3", b"7", *[b"%d" % number for number in range(10, 60)]]
        one_by_one = [await client.get("kv", key) for key in keys]
        assert list((await client.get_many("kv", keys)).entries) == one_by_one
        columns = await client.get_columns("kv", keys)
        live = [entry for entry in one_by_one if entry is not None]
        assert columns.batch is not None
        assert columns.batch.keys() == [entry.key for entry in live]
        assert columns.batch.seq_list() == [entry.seq for entry in live]
        assert columns.state.fold_seq == 50
        assert (await client.get_columns("kv", [b"nothing"])).batch is None


async def test_fold_of_a_log_is_refused(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.create_topic("log", Kind.LOG)
        with pytest.raises(NotKv):
            await client.get("log", b"a")
        with pytest.raises(NotKv):
            await anext(client.range("log"))


async def test_stream_of_appends_makes_its_topic(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        async with client.append_stream("log", create=Kind.LOG) as stream:
            for number in range(100):
                await stream.append([Record(data=b"%d" % number)])
        assert (stream.acknowledged, stream.last_seq) == (100, 100)


async def test_any_address_that_answers_will_do(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store, connect(f"127.0.0.1:1, {store.address}") as client:
        assert client.topology.cluster_id == "local"
        assert client.topology.ingests == ("127.0.0.1:7702",)


async def test_role_that_is_away_is_in_the_statuses(tmp_path: Path) -> None:
    async with served_store(tmp_path) as store:
        topology = Topology("test", (store.address,), (), ("127.0.0.1:1",))
        async with client_at(topology, random_source=random.Random(1)) as client:
            statuses = await client.statuses()
    assert [(status.role, status.reachable) for status in statuses] == [("store", True), ("delivery", False)]
    assert dict(statuses[0].figures)["topic_count"] == 0
    assert statuses[1].reason.startswith("NOT_READY")


async def test_no_answer_is_an_error() -> None:
    with pytest.raises(NotReady):
        async with connect("127.0.0.1:1", timeout_s=0.2):
            pass


async def test_a_cap_that_is_set_later_evicts_and_leaves_a_gap(tmp_path: Path) -> None:
    async with client_of_a_store(tmp_path) as client:
        await client.append("log", [Record(data=b"%d" % number) for number in range(5)], create=Kind.LOG)
        updated = await client.update_topic("log", ConfigChange(cap_records=2))
        assert (updated.config.cap_records, updated.config_version) == (2, 2)
        items = [item async for item in client.read("log")]
        assert items[0] == Gap(1, 3, GapReason.CAP)
        assert [item.seq for item in items[1:]] == [4, 5]
        topic = await client.get_topic("log")
        assert (topic.evict_floor, topic.earliest_seq, topic.record_count) == (3, 4, 2)
        with pytest.raises(InvalidConfig):
            await client.update_topic("log", ConfigChange(cap_records=0, discard=Discard.REJECT))
