"""P11: a batch scan by Spark, local[2]: every column of every row of a topic, into Spark's rows, and thrown away.

Against such rows out of `memory_source.py`, a data source in Python that has its batches ready, which is the most that
Spark takes in from Python; shown beside: Spark reading the same rows from Parquet files that it wrote. Rounds in turn.
`EDDYLINE_BENCH_RECORDS` says how many (10 000 000); `EDDYLINE_BENCH_ROUNDS` rounds (3).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from eddyline.v1 import cluster_pb2, cluster_pb2_grpc, log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc
from tests.bench.harness import Figure, until_idle
from tests.bench.spark.spark_rows import device_batch
from tests.support.cluster.processes import store_process
from tests.support.models.batches import batch_to_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[3]
RECORDS = int(os.environ.get("EDDYLINE_BENCH_RECORDS", "10_000_000"))
ROUNDS = int(os.environ.get("EDDYLINE_BENCH_ROUNDS", "3"))
TOPIC = "scanned"
APPEND = 10_000
DISTINCT = 20
"""Appends that differ; they come again and again."""
TARGET_RATIO = 0.6
SEAL_SECONDS_MAX = 600


async def fill(channel: grpc.aio.Channel) -> None:
    """The topic, all of it in segments but for the last ones."""
    topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_LOG)
    await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
    appends = []
    for number in range(DISTINCT):
        columns = batch_to_columns(device_batch(1 + number * APPEND, APPEND))
        for given in ("first_seq", "seqs", "ts_ms", "ts_ms_each"):
            columns.ClearField(given)
        appends.append(log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns))
    log = log_pb2_grpc.LogServiceStub(channel)
    for number in range(RECORDS // APPEND):
        while True:
            try:
                await log.AppendRecords(appends[number % DISTINCT])
                break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                await asyncio.sleep(0.1)
    cluster = cluster_pb2_grpc.ClusterServiceStub(channel)
    async with asyncio.timeout(SEAL_SECONDS_MAX):
        while True:
            status = await cluster.GetStatus(cluster_pb2.GetStatusRequest())
            if status.store.unsegmented_bytes < 8 << 20:
                break
            await asyncio.sleep(0.2)
    await until_idle(channel)


@contextmanager
def session(directory: Path) -> Iterator[SparkSession]:
    """Spark on two cores, quiet."""
    from pyspark.sql import SparkSession  # its environment is there for this row alone

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    made = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        yield made
    finally:
        made.stop()


def scanned(frame: DataFrame) -> float:
    """Seconds for every column of every row."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def scans(address: str, directory: Path) -> list[Figure]:
    """The rounds, with what is done in Spark."""
    from eddyline.spark.read import read
    from tests.bench.spark.memory_source import MemorySource

    with session(directory) as spark:
        spark.dataSource.register(MemorySource)
        frame = read(spark, address, topic=TOPIC)
        partitions = frame.rdd.getNumPartitions()
        ready = spark.read.format("memory_rows").options(records=RECORDS, partitions=partitions).load()
        assert frame.count() == RECORDS, "rows are missing"
        frame.write.mode("overwrite").parquet(str(directory / "parquet"))
        parquet = spark.read.parquet(str(directory / "parquet"))
        seen: dict[str, list[float]] = {"scan": [], "memory": [], "parquet": []}
        for _ in range(ROUNDS + 1):
            for name, rows in (("scan", frame), ("memory", ready), ("parquet", parquet)):
                seen[name].append(RECORDS / scanned(rows))
    rates = {name: statistics.median(rounds[1:]) for name, rounds in seen.items()}
    return [
        Figure("P11", "scan", rates["scan"], "records/s", rates["scan"] / rates["memory"], TARGET_RATIO),
        Figure("P11", "scan_seconds", RECORDS / rates["scan"], "s"),
        Figure("P11", "memory", rates["memory"], "records/s"),
        Figure("P11", "parquet", rates["parquet"], "records/s", rates["scan"] / rates["parquet"]),
    ]


async def measure() -> list[Figure]:
    """The row."""
    directory = Path(tempfile.mkdtemp())
    try:
        settings = {"EDDYLINE_STORE_CHECKPOINT_INTERVAL_MS": "1000", "EDDYLINE_STORE_SEAL_AGE_MS": "5000"}
        async with store_process(directory / "data", **settings) as (_, address):
            async with grpc.aio.insecure_channel(address) as channel:
                await fill(channel)
            return await asyncio.to_thread(scans, address, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
