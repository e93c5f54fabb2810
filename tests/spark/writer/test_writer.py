"""Data frames into topics: batches and streams, and what is refused on the driver."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as F

from eddyline.core.model.topic import Kind
from eddyline.core.records.record import MetaEntry, Op, Record
from eddyline.spark.source import register
from tests.support.cluster.processes import KillableStore
from tests.support.spark.jobs import wait_until
from tests.support.spark.target import TopicAt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = pytest.mark.spark

FIRST = "2026-03-29 00:59:59.123456"
"""An instant before the clocks go forward in Europe."""


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def to(target: TopicAt, frame: DataFrame, **options: str | int) -> DataFrameWriter:
    given = {"store": target.address, "topic": target.topic, **options}
    return frame.write.format("eddyline").mode("append").options(**given)


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(count, numPartitions=partitions).select(F.col("id").cast("string").alias("data"))


def expected(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))


async def test_every_column_arrives_as_it_is(spark: SparkSession, topic: TopicAt) -> None:
    frame = spark.createDataFrame(
        [
            (bytearray(b"k"), "v", "t", "n", None, FIRST, [("a", bytearray(b"1")), ("a", bytearray(b""))]),
            (None, None, None, "", "APPEND", None, None),
            (bytearray(b""), "", "é", None, None, None, []),
        ],
        "key binary, data string, tag string, node string, op string, at string,"
        " meta array<struct<name:string,value:binary>>",
    )
    to(topic, frame.coalesce(1).withColumn("source_ts", F.col("at").cast("timestamp")).drop("at")).save()
    found = [record._replace(seq=0, ts_ms=0, version=b"") for record in await topic.records()]
    meta = (MetaEntry("a", b"1"), MetaEntry("a", b""))
    assert found == [
        Record(key=b"k", data=b"v", tag="t", node="n", meta=meta, source_ts_ns=1_774_745_999_123_456_000),
        Record(node=""),
        Record(key=b"", data=b"", tag="é"),
    ]


async def test_a_kv_topic_is_made_put_to_and_deleted_from(spark: SparkSession, topic: TopicAt) -> None:
    kv = topic._replace(topic=f"{topic.topic}-kv", kind=Kind.KV)
    rows = [("a", "1", None), ("b", "2", "PUT"), ("a", None, "DELETE"), ("c", "", "PUT")]
    frame = spark.createDataFrame(rows, "key string, data string, op string").coalesce(1)
    to(kv, frame, createTopic="KV").save()
    found = [(record.op, record.key, record.data) for record in await kv.records()]
    assert found == [
        (Op.PUT, b"a", b"1"),
        (Op.PUT, b"b", b"2"),
        (Op.DELETE, b"a", None),
        (Op.PUT, b"c", b""),
    ]


async def test_many_rows_arrive_once_in_the_order_of_their_partitions(spark: SparkSession, topic: TopicAt) -> None:
    to(topic, numbers(spark, 50_000, partitions=3)).save()
    found = [int(data) for data in await topic.data()]
    assert sorted(found) == list(range(50_000))
    for low, high in ((0, 16_666), (16_666, 33_333), (33_333, 50_000)):
        part = [number for number in found if low <= number < high]
        assert part == list(range(low, high))


async def test_a_task_that_fails_after_part_of_its_rows_writes_none_twice(
    spark: SparkSession, topic: TopicAt, tmp_path: Path
) -> None:
    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == 6 and task.attemptNumber() == 0:
                (tmp_path / f"failed-{task.partitionId()}").touch()
                raise ConnectionError("the first attempt of each partition")
            yield batch

    frame = numbers(spark, 150_000).mapInArrow(broken, "data string")
    to(topic, frame).save()
    assert sorted(os.listdir(tmp_path)) == ["failed-0", "failed-1"]
    assert sorted(await topic.data()) == expected(150_000)


async def test_a_named_write_is_done_once(spark: SparkSession, topic: TopicAt) -> None:
    for _ in range(2):
        to(topic, numbers(spark, 3_000), writeId="night-7").save()
    assert sorted(await topic.data()) == expected(3_000)
    with pytest.raises(Exception, match="its rows, or their order, differ"):
        to(topic, numbers(spark, 3_000).withColumn("tag", F.lit("t")), writeId="night-7").save()
    to(topic, numbers(spark, 3_000), writeId="night-8").save()
    assert len(await topic.data()) == 6_000


async def test_two_writes_without_a_name_are_two(spark: SparkSession, topic: TopicAt) -> None:
    for _ in range(2):
        to(topic, numbers(spark, 10)).save()
    assert sorted(await topic.data()) == sorted(expected(10) * 2)


async def test_a_row_that_is_too_large_fails_the_write_by_its_place(spark: SparkSession, topic: TopicAt) -> None:
    frame = spark.range(20, numPartitions=1).select(
        F.when(F.col("id") == 17, F.repeat(F.lit("x"), (1 << 20) + 1)).otherwise("ok").alias("data")
    )
    with pytest.raises(Exception, match=r"row 17: data and meta have 1048577 bytes, at most 1048576"):
        to(topic, frame).save()
    assert await topic.data() == []


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (
            ("data", {"topic": "nowhere"}, "append"),
            "topic nowhere does not exist: create it first, or give option createTopic",
        ),
        (("data", {"topics": "t"}, "append"), "option topics: it is unknown"),
        (("data", {"createTopic": "KV"}, "append"), "option createTopic: topic"),
        (("data", {}, "overwrite"), "mode overwrite"),
        (("data, 1 AS value", {}, "append"), "column value: it is unknown"),
        (("data, 1 AS seq", {}, "append"), "column seq: the store sets it"),
        (("1 AS data", {}, "append"), "column data: it has type int32"),
        (("data, now() AS source_ts, 1 AS source_ts_ns", {}, "append"), "column source_ts: source_ts_ns is also given"),
    ],
)
async def test_what_cannot_be_written_is_refused_before_it_begins(
    spark: SparkSession, topic: TopicAt, write: tuple[str, dict[str, str], str], named: str
) -> None:
    columns, options, mode = write
    frame = numbers(spark, 5).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=named):
        to(topic, frame, **options).mode(mode).save()
    assert await topic.data() == []


async def test_a_store_that_is_killed_and_restarted_in_mid_write_has_each_row_once(
    spark: SparkSession, killable_store: KillableStore, tmp_path: Path
) -> None:
    topic = TopicAt(killable_store.address, "t")
    started, killed = tmp_path / "started", tmp_path / "killed"

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 6:
                started.touch()
                wait_until(killed.exists)
            yield batch

    def kill() -> None:
        wait_until(started.exists)
        killable_store.kill()
        killed.touch()
        killable_store.start()

    killable_store.start()
    topic.make()
    killing = threading.Thread(target=kill)
    killing.start()
    to(topic, numbers(spark, 200_000).mapInArrow(held, "data string")).save()
    killing.join()
    assert sorted(await topic.data()) == expected(200_000)


async def test_a_stream_that_runs_a_micro_batch_again_writes_it_once(
    spark: SparkSession, topic: TopicAt, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1_500).option("numPartitions", 2)
    frame = source.load().select(F.col("value").cast("string").alias("data"))

    def run_until(batch: int) -> int:
        options = {"store": topic.address, "topic": topic.topic, "checkpointLocation": str(checkpoint)}
        query = frame.writeStream.format("eddyline").options(**options).trigger(processingTime="0 seconds").start()
        try:
            wait_until((checkpoint / "commits" / str(batch)).exists)
        finally:
            query.stop()
        assert query.exception() is None
        return max(int(name) for name in os.listdir(checkpoint / "commits") if name.isdecimal())

    last = run_until(2)
    for name in (str(last), f".{last}.crc"):
        os.unlink(checkpoint / "commits" / name)
    last = run_until(last + 1)
    found = sorted(int(data) for data in await topic.data())
    # A micro-batch may have been under way when the query was stopped.
    assert found[: (last + 1) * 1_500] == list(range((last + 1) * 1_500))
    assert len(found) == len(set(found)) == found[-1] + 1


async def test_a_stream_that_replaces_its_result_is_refused(
    spark: SparkSession, topic: TopicAt, tmp_path: Path
) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    counted = (
        frame.groupBy(F.lit("all").alias("key")).count().select("key", F.col("count").cast("string").alias("data"))
    )
    options = {"store": topic.address, "topic": topic.topic, "checkpointLocation": str(tmp_path / "checkpoint")}
    query = counted.writeStream.format("eddyline").options(**options).outputMode("complete").start()
    with pytest.raises(Exception, match="mode overwrite"):
        query.awaitTermination(120)
    assert await topic.data() == []


async def test_what_was_read_of_one_topic_is_written_to_another(spark: SparkSession, topic: TopicAt) -> None:
    copy = topic._replace(topic=f"{topic.topic}-copy")
    meta = F.array(F.struct(F.lit("n").alias("name"), F.lit(b"v").alias("value")))
    to(topic, numbers(spark, 2_000, partitions=1).withColumns({"meta": meta, "tag": F.lit("t")})).save()
    reading = spark.read.format("eddyline").options(store=topic.address, topic=topic.topic).load()
    written = reading.select("key", "data", "tag", "node", "op", "source_ts_ns", "meta")
    to(copy, written.coalesce(1), createTopic="LOG").save()
    assert [record[2:9] for record in await copy.records()] == [record[2:9] for record in await topic.records()]
