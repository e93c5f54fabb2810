"""The jobs through Spark Connect: a session that has no SparkContext."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from eddyline.core.model.topic import Kind
from eddyline.core.records.record import Op
from tests.support.spark.topics import append_all, plain_records, store_and_client

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from eddyline.spark.jobs.audit import audit, summary
from eddyline.spark.jobs.export import ExportOptions, export
from eddyline.spark.jobs.fold_as_of import FoldOptions, fold_as_of
from eddyline.spark.jobs.stats import StatsOptions, stats
from eddyline.spark.options.read import parse_options

address, out = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
read = parse_options({"store": address, "topic": "routes"})
fold = parse_options({"store": address, "topic": "routes", "read": "asOf", "asOfSeq": "100"})
tell = lambda text: None
(exported,) = export(spark, ExportOptions(read, out + "/export"), tell)
(folded,) = fold_as_of(spark, FoldOptions(fold, out + "/folds"), tell)
told = stats(spark, StatsOptions(read, out + "/stats"), tell)
print(json.dumps([type(spark).__module__, exported.rows, folded.rows, told["topics"][0]["records"],
                  summary(audit(spark, read, tell))["verdict"]]))
spark.stop()
"""


@pytest.mark.timeout(600)
async def test_every_job_runs_on_connect(tmp_path: Path) -> None:

    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", plain_records(500, keys=50, op=Op.PUT))
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", SCRIPT, address, str(tmp_path / "out")],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert json.loads(ended.stdout.splitlines()[-1]) == ["pyspark.sql.connect.session", 500, 50, 500, "pass"]
