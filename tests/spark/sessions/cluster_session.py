"""A session with executors of its own, two of them, of which one is killed in mid partition while tasks are speculated."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from eddyline.spark.read import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

KILLED_PARTITION = 2
SLOW_PARTITION = 4
SLOW_S = 30


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])


def disturbed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they come; a first attempt at one partition takes its executor down, at another it hangs."""
    context = TaskContext.get()
    assert context is not None
    first = context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if first and context.partitionId() == KILLED_PARTITION:
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
        if first and context.partitionId() == SLOW_PARTITION:
            threading.Event().wait(SLOW_S)


def main(store: str, out: str) -> None:
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("eddyline-executors")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "1s")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = read(spark, store, topic="routes", max_records_per_partition=1_000, columns=["seq", "data"])
    partitions = frame.rdd.getNumPartitions()
    frame.mapInArrow(disturbed, frame.schema).write.parquet(out)
    written = spark.read.parquet(out)
    row = written.selectExpr("count(*) AS rows", "count(DISTINCT seq) AS seqs", "max(seq) AS last").collect()[0]
    spark.stop()
    sys.stdout.write(json.dumps({"partitions": partitions, **row.asDict()}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
