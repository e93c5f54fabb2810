"""A store with keys and client certificates: who has them reads, writes and runs jobs, and nobody else."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from eddyline.client.connect import connect
from eddyline.core.records.record import Record
from eddyline.spark.jobs.audit import Audit
from eddyline.spark.jobs.export import Export
from eddyline.spark.jobs.load import Load
from eddyline.spark.jobs.stats import Stats
from eddyline.spark.options.access import AccessOptions
from eddyline.spark.read import read
from eddyline.spark.source import register
from tests.spark.sessions.secured_store import HOLDER, READER, SecuredStore, secured_store
from tests.support.access import secret_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from eddyline.spark.jobs.job import Job, Result
    from tests.support.spark.target import TopicAt

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 100


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> None:
    register(spark)


def rows(spark: SparkSession) -> DataFrame:
    text = F.col("id").cast("string")
    return spark.range(ROWS, numPartitions=2).select(text.alias("key"), text.alias("data"))


def write(frame: DataFrame, options: dict[str, str], topic: str = "routes") -> None:
    given = {"topic": topic, "createTopic": "KV", **options}
    frame.write.format("eddyline").mode("append").options(**given).save()


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("eddyline").options(topic="routes", **options).load()


def explained(frame: DataFrame) -> str:
    """The output of `explain(extended)`."""
    return str(frame._jdf.queryExecution().toString())


async def run(job: Job, spark: SparkSession, store: SecuredStore, *words: str) -> Result:
    """A job by its command line."""
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    files = store.files()
    flags = ["--key-file", str(store.key_file()), "--tls-ca", files["tlsCa"]]
    flags += ["--tls-cert", files["tlsCert"], "--tls-key", files["tlsKey"], "--patience", "20"]
    parsed = parser.parse_args([*words, *flags])
    parsed.store = (store.address,)
    return await asyncio.to_thread(job.run, spark, parsed)


async def test_who_has_key_and_certificate_writes_reads_and_streams(spark: SparkSession, tmp_path: Path) -> None:
    async with secured_store(tmp_path) as store:
        key_file = store.key_file()
        options = store.place(keyFile=str(key_file))
        write(rows(spark), options)
        frame = load(spark, options)
        key_file.rename(tmp_path / "moved.key")
        assert frame.where("key_text = data").count() == ROWS, "the tasks have what the file held, and need none"
        (tmp_path / "moved.key").rename(key_file)

        stream = spark.readStream.format("eddyline").options(topic="routes", **options).load()
        query = (
            stream.select("key", "data")
            .writeStream.format("eddyline")
            .options(topic="routes.copy", createTopic="KV", checkpointLocation=str(tmp_path / "checkpoint"), **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        async with connect(store.address, access=store.client()) as client:
            copied = [item async for item in client.read("routes.copy")]
        assert sorted(item.key or b"" for item in copied if isinstance(item, Record)) == sorted(
            b"%d" % number for number in range(ROWS)
        )


async def test_jobs_get_in_by_their_flags(spark: SparkSession, tmp_path: Path) -> None:
    async with secured_store(tmp_path) as store:
        lines = tmp_path / "lines.jsonl"
        lines.write_text("".join(json.dumps({"key": f"{n}", "data": "x"}) + "\n" for n in range(ROWS)), "utf-8")
        loaded = await run(Load(), spark, store, "--topic", "routes", "--create", "kv", str(lines))
        assert loaded["records"] == ROWS
        audited = await run(Audit(), spark, store, "--topic", "routes")
        assert (audited["verdict"], audited["failed"]) == ("pass", 0)
        topics = audited["topics"]
        assert isinstance(topics, list)
        assert topics[0]["entries"] == topics[0]["rows"] == ROWS
        exported = await run(Export(), spark, store, "--topic", "routes", "--out", str(tmp_path / "out"))
        assert (exported["rows"], exported["failed"]) == (ROWS, 0)
        counted = await run(Stats(), spark, store, "--topic", "routes", "--out", str(tmp_path / "stats"))
        assert isinstance(counted["topics"], list)
        assert counted["topics"][0]["records"] == ROWS


async def test_wrong_key_fails_on_the_driver_and_names_the_option(spark: SparkSession, tmp_path: Path) -> None:
    async with secured_store(tmp_path) as store:
        files = store.files()
        secured = AccessOptions(tls_ca=files["tlsCa"], tls_cert=files["tlsCert"], tls_key=files["tlsKey"])
        for attempt in (
            lambda: read(spark, store.address, topic="routes", access=secured, patience_s=20),
            lambda: load(spark, store.place(key="opaque-4711")),
            lambda: write(rows(spark), store.place()),
        ):
            with pytest.raises(PySparkException, match=r"option keyFile, or key") as raised:
                attempt()
            assert "Unauthenticated" in str(raised.value)
            assert "opaque-4711" not in str(raised.value)
        with pytest.raises(PySparkException, match="PermissionDenied"):
            write(rows(spark), store.place(keyFile=str(store.key_file(READER))))
        with pytest.raises(PySparkException, match=r"without TLS: options tls, tlsCa"):
            load(spark, {"store": store.address, "key": secret_of(HOLDER), "patienceSeconds": "1"})


async def test_no_plan_and_no_progress_prints_a_secret(spark: SparkSession, topic: TopicAt, tmp_path: Path) -> None:
    options = {"store": topic.address, "topic": topic.topic, "key": "opaque-4711"}
    rows(spark).write.format("eddyline").mode("append").options(**options).save()
    frame = spark.read.format("eddyline").options(**options).load()
    stream = spark.readStream.format("eddyline").options(**options).load()
    query = (
        stream.select("data")
        .writeStream.format("eddyline")
        .options(**options, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = [explained(frame), query._jsq.explainInternal(True), str(query.lastProgress)]
    told += [
        path.read_text("utf-8") for path in (tmp_path / "checkpoint").rglob("*") if path.suffix == "" and path.is_file()
    ]
    assert len(told) > 5, "the checkpoint has files"
    assert not [text for text in told if options["key"] in text]


async def test_the_pattern_that_is_documented_hides_a_secret_where_spark_prints_options(
    spark: SparkSession, topic: TopicAt
) -> None:
    options = {"store": topic.address, "topic": topic.topic, "key": "opaque-4711"}
    stream = spark.readStream.format("eddyline").options(**options).load()
    named = ", ".join(f"{name} '{text}'" for name, text in options.items())
    view = f"EXPLAIN EXTENDED CREATE TEMPORARY VIEW secured USING eddyline OPTIONS ({named})"
    assert options["key"] in explained(stream), "by default Spark tells it: keyFile is what the README recommends"
    spark.conf.set("spark.sql.redaction.options.regex", "(?i)url|^key$")
    try:
        for text in (explained(stream), str(spark.sql(view).collect())):
            assert topic.address in text
            assert options["key"] not in text
    finally:
        spark.conf.unset("spark.sql.redaction.options.regex")
