"""P15: Spark's jobs: export and audit of one KV topic, on two local cores, from a store process beside them.

`EDDYLINE_BENCH_RECORDS` records (10 000 000) of 100 bytes under a tenth as many keys. Beside the export, for its ratio,
Spark reads the same records by the data source and writes them with its own Parquet writer, which makes no plan, no sums and
no manifest. The audit reads the log once for order and account, and base and log again for the fold that it compares.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import numpy as np

from eddyline.core.records.record import Op
from eddyline.v1 import log_pb2, log_pb2_grpc, topic_pb2, topic_pb2_grpc, types_pb2
from tests.bench.harness import Figure, until_idle
from tests.bench.rows.p1_append import OPTIONS
from tests.support.cluster.processes import store_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

RECORDS = int(os.environ.get("EDDYLINE_BENCH_RECORDS", "10000000"))
KEYS = max(1, RECORDS // 10)
BATCH = 10_000
DATA_BYTES = 100
TOPIC = "bench"


def batch_from(first: int, count: int, values: bytes) -> types_pb2.ColumnarBatch:
    """Records with keys in a fixed disorder, half of whose bytes compress."""
    numbers = (np.arange(first, first + count, dtype=np.uint64) * np.uint64(2_654_435_761)) % np.uint64(KEYS)
    keys = b"".join(b"device/%09d" % number for number in numbers.tolist())
    key_bounds = np.arange(0, 16 * count + 1, 16, dtype="<u4").tobytes()
    data_bounds = np.arange(0, DATA_BYTES * count + 1, DATA_BYTES, dtype="<u4").tobytes()
    return types_pb2.ColumnarBatch(
        count=count,
        ops=bytes([Op.PUT]) * count,
        key=types_pb2.BinaryColumn(offsets=key_bounds, values=keys),
        data=types_pb2.BinaryColumn(offsets=data_bounds, values=values[: DATA_BYTES * count]),
    )


async def fill(address: str) -> None:
    """The topic, with all records, settled."""
    values = b"".join(os.urandom(DATA_BYTES // 2) + bytes(DATA_BYTES // 2) for _ in range(BATCH))
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        topic = topic_pb2.Topic(name=TOPIC, kind=topic_pb2.TOPIC_KIND_KV)
        await topic_pb2_grpc.TopicServiceStub(channel).CreateTopic(topic_pb2.CreateTopicRequest(topic=topic))
        log = log_pb2_grpc.LogServiceStub(channel)
        for first in range(0, RECORDS, BATCH):
            columns = batch_from(first, min(BATCH, RECORDS - first), values)
            request = log_pb2.AppendRecordsRequest(topic=TOPIC, columns=columns)
            while True:
                try:
                    await log.AppendRecords(request)
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    await asyncio.sleep(0.2)
        await until_idle(channel)


def session(directory: Path) -> SparkSession:
    """Two cores."""
    from pyspark.sql import SparkSession  # Spark is asked for by this row alone

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.local.dir", str(directory))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure_jobs(address: str, directory: Path) -> list[Figure]:
    """Both jobs, and what the export is compared with."""
    from eddyline.spark.jobs.audit import audit
    from eddyline.spark.jobs.export import ExportOptions, export
    from eddyline.spark.options.read import parse_options
    from eddyline.spark.read import read

    spark = session(directory)
    options = parse_options({"store": address, "topic": TOPIC})
    # Python's workers and Java's code are warm in the second job of a session.
    read(spark, address, topic=TOPIC, ending_seq=1_000).count()

    def run_export() -> None:
        (done,) = export(spark, ExportOptions(options, str(directory / "export")), lambda text: None)
        assert (done.rows, done.error) == (RECORDS, "")

    def run_plain() -> None:
        rows = read(spark, address, topic=TOPIC).drop("topic")
        rows.write.option("compression", "zstd").parquet(str(directory / "plain"))

    def run_audit() -> None:
        (done,) = audit(spark, options, lambda text: None)
        assert (done.rows, done.entries, done.finding_count, done.error) == (RECORDS, KEYS, 0, "")

    try:
        exporting, plain, auditing = timed(run_export), timed(run_plain), timed(run_audit)
    finally:
        spark.stop()
    figures = [
        Figure("P15", "export", RECORDS / exporting, "records/s", plain / exporting),
        Figure("P15", "export_seconds", exporting, "s"),
        Figure("P15", "spark_parquet", RECORDS / plain, "records/s"),
        Figure("P15", "audit", RECORDS / auditing, "records/s"),
        Figure("P15", "audit_seconds", auditing, "s"),
    ]
    for name in ("export", "plain"):
        size = sum(path.stat().st_size for path in (directory / name).rglob("*.parquet"))
        figures.append(Figure("P15", f"{name}_bytes", size, "bytes"))
    return figures


async def measure() -> list[Figure]:
    """The row's figures."""
    with tempfile.TemporaryDirectory() as name:
        async with store_process(Path(name) / "store") as (_, address):
            await fill(address)
            return await asyncio.to_thread(measure_jobs, address, Path(name))
