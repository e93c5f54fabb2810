"""Batch reads of the log: in Spark what the client library reads, for every part of a record, from segments and the rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException

from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op, Record
from eddyline.spark.read import read
from eddyline.spark.schema import SCHEMA
from tests.spark.sessions.collected import count_of, rows_of
from tests.spark.sessions.rows_expected import expected_rows
from tests.support.spark.topics import append_all, odd_records, plain_records, read_all, store_and_client, until_sealed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


async def test_a_topic_is_read_as_the_client_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", odd_records() + plain_records(3_000, keys=50))
        await until_sealed(client.channel_to(address))
        await append_all(client, "routes", odd_records())
        frame = await asyncio.to_thread(read, spark, address, topic="routes")
        assert frame.schema == SCHEMA
        assert await rows_of(frame) == expected_rows("routes", await read_all(client, "routes"))


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Asia/Kathmandu"])
async def test_times_are_moments_in_every_session_time_zone(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", odd_records())
        before = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            frame = await asyncio.to_thread(read, spark, address, topic="routes")
            numbers = frame.selectExpr("seq", "unix_micros(ts) AS ts", "unix_micros(source_ts) AS source_ts")
            found = await asyncio.to_thread(numbers.collect)
        finally:
            spark.conf.set("spark.sql.session.timeZone", str(before))
        expected = expected_rows("routes", await read_all(client, "routes"))
        assert [row.asDict() for row in found] == [
            {name: row[name] for name in ("seq", "ts", "source_ts")} for row in expected
        ]


async def test_f08_records_a_nanosecond_apart_keep_their_order(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        base = 1_774_745_999_000_000_000
        await client.append("routes", [Record(source_ts_ns=base + apart) for apart in (2, 0, 1)])
        frame = await asyncio.to_thread(read, spark, address, topic="routes")
        rows = await rows_of(frame.orderBy("source_ts_ns"))
        assert [row["seq"] for row in rows] == [2, 3, 1]
        assert len({row["source_ts"] for row in rows}) == 1


async def test_f10_parallel_splits_and_two_views_give_every_record_once(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20_000), batch=1_000)
        await until_sealed(client.channel_to(address), bytes_left=1 << 20)
        frame = await asyncio.to_thread(read, spark, address, topic="routes", max_records_per_partition=2_500)
        assert await asyncio.to_thread(frame.rdd.getNumPartitions) >= 8
        for name in ("one", "two"):
            frame.createOrReplaceTempView(name)
        found = await asyncio.to_thread(
            spark.sql(
                "SELECT count(*) AS rows, count(DISTINCT one.seq) AS seqs, max(one.seq) AS last"
                " FROM one JOIN two ON one.seq = two.seq AND one.data = two.data"
            ).collect
        )
        assert found[0].asDict() == {"rows": 20_000, "seqs": 20_000, "last": 20_000}


async def test_what_became_of_each_split_is_in_the_workers_logs(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("audited", Kind.LOG)
        await append_all(client, "audited", plain_records(30))
        await client.delete_records("audited", before_seq=5)
        frame = await asyncio.to_thread(read, spark, address, topic="audited", starting_seq=1, tags=["even"])
        spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
        try:
            assert await count_of(frame) == 13
            logs = spark.tvf.python_worker_logs().where("msg LIKE 'split read: topic=audited %'")
            assert [row["msg"] for row in await asyncio.to_thread(logs.collect)] == [
                "split read: topic=audited first=1 last=4 rows=0 gaps=0 deleted=4 hidden=0",
                "split read: topic=audited first=5 last=30 rows=13 gaps=0 deleted=0 hidden=13",
            ]
        finally:
            spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "false")


async def test_every_action_sees_the_head_of_the_load(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(10))
        frame = await asyncio.to_thread(read, spark, address, topic="routes")
        await append_all(client, "routes", plain_records(5))
        assert await count_of(frame) == 10
        await append_all(client, "routes", plain_records(5))
        assert await count_of(frame.join(frame.select("seq"), "seq")) == 10
        assert await count_of(await asyncio.to_thread(read, spark, address, topic="routes")) == 20


async def test_a_range_of_seqs_is_half_open(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(100))
        frame = await asyncio.to_thread(
            read, spark, address, topic="routes", starting_seq=20, ending_seq={"routes": 31}, columns=["seq"]
        )
        assert [row["seq"] for row in await rows_of(frame)] == list(range(20, 31))
        empty = await asyncio.to_thread(read, spark, address, topic="routes", starting_seq="latest")
        assert await rows_of(empty) == []


async def test_columns_are_those_requested_by_option_or_schema(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", odd_records())
        expected = expected_rows("routes", await read_all(client, "routes"))
        for columns in (["key_text", "version"], ["data"], ["meta", "source_ts"], ["topic"], SCHEMA.fieldNames()[::-1]):
            frame = await asyncio.to_thread(read, spark, address, topic="routes", columns=columns)
            assert frame.columns == [name for name in SCHEMA.fieldNames() if name in columns]
            assert await rows_of(frame) == [{name: row[name] for name in frame.columns} for row in expected]
        loader = spark.read.format("eddyline").options(store=address, topic="routes")
        given = await asyncio.to_thread(loader.schema("version binary, seq bigint").load)
        assert await rows_of(given) == [{"version": row["version"], "seq": row["seq"]} for row in expected]
        with pytest.raises(PySparkException, match="seq is bigint, not int"):
            await count_of(loader.schema("seq int").load())


async def test_several_topics_and_prefixes_are_read_together(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name, count in (("routes.a", 3), ("routes.b", 4), ("certs", 5), ("routes.none", 0)):
            await client.create_topic(name, Kind.LOG)
            await append_all(client, name, plain_records(count))
        for topic, counts in (
            ("routes.*", {"routes.a": 3, "routes.b": 4}),
            (["certs", "routes.b"], {"certs": 5, "routes.b": 4}),
        ):
            frame = await asyncio.to_thread(read, spark, address, topic=topic)
            found = await asyncio.to_thread(frame.groupBy("topic").count().collect)
            assert {row["topic"]: row["count"] for row in found} == counts
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_sql USING eddyline OPTIONS (store '{address}', topic 'certs')")
        assert (await asyncio.to_thread(spark.sql("SELECT max(seq) FROM by_sql").collect))[0][0] == 5
        for missing in ("nowhere", "nowhere.*"):
            with pytest.raises(AnalysisException, match="nowhere"):
                await asyncio.to_thread(read, spark, address, topic=missing)


async def test_filters_choose_as_a_read_of_the_log_does(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", plain_records(3_000, keys=30, op=Op.PUT))
        await until_sealed(client.channel_to(address))
        await client.append("routes", [Record(op=Op.DELETE, key=b"key-1"), Record(op=Op.PUT, key=b"\xff", data=b"x")])
        rows = expected_rows("routes", await read_all(client, "routes"))
        cases: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
            ({"tags": ["odd"]}, lambda row: row["tag"] == "odd"),
            ({"exclude_nodes": ["n1"]}, lambda row: row["node"] != "n1"),
            ({"ops": ["DELETE"]}, lambda row: row["op"] == "DELETE"),
            ({"key_prefixes": ["key-1", b"\xff"]}, lambda row: row["key"].startswith((b"key-1", b"\xff"))),
            (
                {"key_prefixes": ["key-2"], "tags": ["even"], "columns": SCHEMA.fieldNames()},
                lambda row: row["key"].startswith(b"key-2") and row["tag"] == "even",
            ),
        ]
        for options, keeps in cases:
            frame = await asyncio.to_thread(read, spark, address, topic="routes", **options)
            assert await rows_of(frame) == [row for row in rows if keeps(row)], options


async def test_time_ranges_go_by_source_time_where_there_is_one(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", list(reversed(plain_records(50))))
        frame = await asyncio.to_thread(
            read, spark, address, topic="routes", starting_time=10_000, ending_time=13_000, columns=["source_ts_ns"]
        )
        assert [row["source_ts_ns"] for row in await rows_of(frame)] == [number * 10**9 for number in (12, 11, 10)]


async def test_time_ranges_go_by_commit_time_on_request_or_as_the_only_one(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name in ("routes", "bare"):
            await client.create_topic(name, Kind.LOG)
        await append_all(client, "routes", plain_records(10))
        await client.append("bare", [Record(data=b"first")])
        middle = (await client.append("routes", plain_records(1))).ts_ms + 1
        await asyncio.to_thread(_wait_until_ms, middle)
        await append_all(client, "routes", plain_records(5))
        await client.append("bare", [Record(data=b"second")])
        late = await asyncio.to_thread(read, spark, address, topic="routes", starting_time=middle, time_by="commit")
        early = await asyncio.to_thread(read, spark, address, topic="routes", ending_time=middle, time_by="commit")
        assert [row["seq"] for row in await rows_of(early)] == list(range(1, 12))
        assert [row["seq"] for row in await rows_of(late)] == list(range(12, 17))
        bare = await asyncio.to_thread(read, spark, address, topic="bare", starting_time=middle)
        assert [row["data"] for row in await rows_of(bare)] == [b"second"]


async def test_a_bound_above_the_head_is_refused_by_its_option(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        for option in ("startingSeq", "endingSeq"):
            loader = spark.read.format("eddyline").options(store=address, topic="routes").option(option, 3)
            with pytest.raises(AnalysisException, match=f"option {option}: 3 is above the head"):
                await asyncio.to_thread(loader.load)


def test_a_store_that_is_not_there_is_reported_with_its_address(spark: SparkSession) -> None:
    from eddyline.spark.source import register

    register(spark)
    loader = spark.read.format("eddyline").options(store="127.0.0.1:1", topic="routes", patienceSeconds=1)
    with pytest.raises(AnalysisException, match=r"no answer from 127\.0\.0\.1:1"):
        loader.load()


def _wait_until_ms(moment_ms: int) -> None:
    from eddyline.core.runtime.clock import SystemClock

    while SystemClock().now_ms() <= moment_ms:
        pass


async def test_key_prefixes_in_python_are_bytes_or_text_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", [Record(key=b"\xff1"), Record(key=b"base64:/w==2"), Record(key=b"other")])
        for prefix, seq in ((b"\xff", 1), ("base64:/w==", 2)):
            frame = await asyncio.to_thread(read, spark, address, topic="routes", key_prefixes=[prefix])
            assert [row["seq"] for row in await rows_of(frame)] == [seq]
