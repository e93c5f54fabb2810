"""Processes killed in the middle of an export: afterwards each record exists once, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import duckdb
import pytest

from eddyline.core.records.record import Record
from eddyline.export.run import TopicExport
from eddyline.spark.jobs.export import ExportOptions, export
from eddyline.spark.options.read import parse_options
from tests.support.spark.jobs import executors_of, filled, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.cluster.processes import KillableStore
    from tests.support.spark.target import TopicAt

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

RECORDS = 40_000
PER_FILE = 1_000


def lines_of(store: KillableStore) -> TopicAt:
    records = [Record(data=b"%d" % number + b"." * 100) for number in range(RECORDS)]
    return filled(store, "lines", records, batch=PER_FILE)


def finish(spark: SparkSession, topic: TopicAt, out: Path) -> TopicExport:
    read = parse_options({"store": topic.address, "topic": topic.topic, "maxRecordsPerPartition": str(PER_FILE)})
    (done,) = export(spark, ExportOptions(read, str(out)), lambda text: None)
    return done


def seqs_in(out: Path) -> list[int]:
    found = duckdb.sql(f"SELECT seq FROM read_parquet('{out}/topic=*/day=*/*.parquet') ORDER BY seq")
    assert found is not None
    return [row[0] for row in found.fetchall()]


def parts_in(out: Path) -> int:
    return len(list(out.glob("topic=*/day=*/*.parquet")))


def program(topic: TopicAt, out: Path, **environment: str) -> subprocess.Popen[str]:
    arguments = [
        "--store",
        topic.address,
        "--topic",
        topic.topic,
        "--out",
        str(out),
        "--records-per-file",
        str(PER_FILE),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "eddyline.spark.jobs.export", *arguments],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_store_that_is_killed_in_mid_export_costs_nothing(
    spark: SparkSession, killable_store: KillableStore, tmp_path: Path
) -> None:
    topic, out = lines_of(killable_store), tmp_path / "out"

    def kill() -> None:
        wait_until(lambda: parts_in(out) > 0)
        killable_store.kill()
        killable_store.start()

    killing = threading.Thread(target=kill)
    killing.start()
    done = finish(spark, topic, out)
    killing.join()
    assert (done.error, done.rows, done.gaps, done.deleted) == ("", RECORDS, 0, 0)
    assert seqs_in(out) == list(range(1, RECORDS + 1))


def test_a_driver_that_is_killed_is_made_up_for_by_the_next_run(
    spark: SparkSession, killable_store: KillableStore, tmp_path: Path
) -> None:
    topic, out = lines_of(killable_store), tmp_path / "out"
    with program(topic, out) as running:
        wait_until(lambda: parts_in(out) > 0)
        running.kill()
    assert not list(out.glob("_eddyline/*/*.manifest.json"))
    done = finish(spark, topic, out)
    assert (done.error, done.rows) == ("", RECORDS)
    assert seqs_in(out) == list(range(1, RECORDS + 1))
    assert parts_in(out) == done.files


def test_an_executor_that_is_killed_costs_nothing(killable_store: KillableStore, tmp_path: Path) -> None:
    topic, out = lines_of(killable_store), tmp_path / "out"
    cluster = "--master local-cluster[2,1,1024] --conf spark.speculation=true --conf spark.driver.host=127.0.0.1"
    with program(topic, out, PYSPARK_SUBMIT_ARGS=f"{cluster} --conf spark.ui.enabled=false pyspark-shell") as running:
        wait_until(lambda: parts_in(out) > 0)
        os.kill(executors_of(running.pid)[0], signal.SIGKILL)
        said, _ = running.communicate()
    told = json.loads(said.splitlines()[-1])
    assert (running.returncode, told["rows"], told["failed"]) == (0, RECORDS, 0)
    assert seqs_in(out) == list(range(1, RECORDS + 1))
