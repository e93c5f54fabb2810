"""The audit: correct stores pass, each planted defect is detected, and an unreadable topic is no pass."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import connect
from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.fold_entry import encode_entry
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.spark.jobs.audit import Audit, repeats
from eddyline.spark.jobs.job import JobError
from eddyline.store.fold.fold import FoldWrite
from eddyline.store.fold.rocksdb import RocksFold
from eddyline.store.storage.layout import Layout
from tests.spark.reader.test_fold_read import history
from tests.support.cluster.processes import store_process
from tests.support.spark.topics import SEALS_OFTEN, append_all, plain_records, store_and_client, until_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from eddyline.spark.jobs.job import Result

pytestmark = pytest.mark.spark


async def run_audit(spark: SparkSession, address: str, *options: str, topic: str = "routes") -> Result:
    job, parser = Audit(), argparse.ArgumentParser()
    job.add_arguments(parser)
    arguments = parser.parse_args(["--topic", topic, "--patience", "5", *options])
    arguments.store = (address,)
    return await asyncio.to_thread(job.run, spark, arguments)


async def test_right_topics_pass_with_their_losses_reported(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", history(2_000, seed=1), batch=500)
        await until_sealed(client.channel_to(address))
        await append_all(client, "routes", [Record(op=Op.PUT, key=b"\xff", data=b""), Record(op=Op.PUT, key=b"\x00")])
        await client.delete_records("routes", match=Match(MatchField.KEY, MatchKind.EQ, b"key-3"))
        await client.create_topic("lines", Kind.LOG, TopicConfig(cap_records=60))
        await append_all(client, "lines", plain_records(100), batch=20)
        result = await run_audit(spark, address, "--partitions", "2", topic="routes,lines")
        assert (result["verdict"], result["findings"], result["failed"]) == ("pass", 0, 0)
        topics = result["topics"]
        assert isinstance(topics, list)
        routes, lines = topics
        live = len([entry async for entry in client.range("routes")])
        assert (routes["entries"], routes["differing"], routes["fold_seq"]) == (live, 0, 2_002)
        assert routes["rows"] + routes["deleted"] == 2_002
        assert routes["deleted"] > 0
        assert (lines["rows"], lines["fold_seq"]) == (60, None)
        with pytest.raises(JobError) as found:
            await run_audit(spark, address, "--on-gap", "fail", topic="missing")
        assert found.value.usage


async def test_entries_that_were_changed_behind_the_log_are_detected(spark: SparkSession, tmp_path: Path) -> None:
    data_dir = tmp_path / "store"
    async with store_and_client(data_dir) as (address, client):
        topic = await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", plain_records(2_000, keys=100, op=Op.PUT), batch=500)
        await until_sealed(client.channel_to(address))
    fold = RocksFold(Layout(data_dir).fold)
    changed = [
        (b"key-7", encode_entry(Record(1_908, 1, 0, Op.PUT, b"key-7", b"flipped"))),
        (b"key-8", None),
        (b"never", encode_entry(Record(17, 1, 0, Op.PUT, b"never", b"written"))),
    ]
    fold.apply([FoldWrite(topic.epoch, fold.applied(topic.epoch), changed, [])])
    fold.flush()
    fold.close()
    async with store_process(data_dir, **SEALS_OFTEN) as (_, address), connect(address):
        with pytest.raises(JobError) as found:
            await run_audit(spark, address)
        result = found.value.result
        assert (result["verdict"], result["findings"], found.value.usage) == ("findings", 3, False)
        topics = result["topics"]
        assert isinstance(topics, list)
        routes = topics[0]
        assert routes["differing"] == 3
        assert routes["findings"] == [
            "key 'key-7' differs in its value, at seq 1908",
            "key 'key-8' is not in the fold; base and log have it at seq 1909",
            "key 'never' is in the fold at seq 17; base and log do not have it",
        ]


async def test_a_log_that_is_damaged_is_detected_and_is_no_pass(spark: SparkSession, tmp_path: Path) -> None:
    data_dir = tmp_path / "store"
    async with store_and_client(data_dir) as (address, client):
        await client.create_topic("lines", Kind.LOG)
        await append_all(client, "lines", plain_records(3_000), batch=500)
        await until_sealed(client.channel_to(address))
    segment = max((data_dir / "topics").glob("*/*.arrow"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 3] ^= 0xFF
    segment.write_bytes(content)
    async with store_process(data_dir, **SEALS_OFTEN) as (_, address), connect(address):
        with pytest.raises(JobError) as found:
            await run_audit(spark, address, topic="lines")
        assert found.value.result["verdict"] != "pass"


async def test_a_version_that_came_twice_is_detected(spark: SparkSession) -> None:
    rows = [
        (1, b"a", b"\x01", 5),
        (2, b"a", b"\x02", 5),
        (3, b"a", b"\x01", 5),
        (4, b"b", b"\x01", 5),
        (5, b"a", b"\x01", 6),
        (6, b"a", b"\x09", None),
        (7, b"a", b"\x09", None),
    ]
    frame = spark.createDataFrame(rows, "seq bigint, key binary, version binary, source_ts_ns bigint")
    found = await asyncio.to_thread(repeats(frame).collect)
    assert [(bytes(row["key"]), row["times"], row["first"], row["last"]) for row in found] == [(b"a", 2, 1, 3)]
