"""Stats: tables that agree with what was written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import duckdb
import pytest

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.record import Record
from eddyline.spark.jobs.stats import StatsOptions, stats
from eddyline.spark.options.read import parse_options
from tests.support.spark.topics import append_all, plain_records, store_and_client

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def table(path: Path, query: str) -> list[tuple[object, ...]]:
    found = duckdb.sql(query.replace("TABLE", f"read_parquet('{path}')"))
    assert found is not None
    return found.fetchall()


async def test_tables_count_what_topics_hold(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes.a", Kind.LOG, TopicConfig(cap_records=60))
        records = plain_records(80, keys=3)
        await append_all(client, "routes.a", records, batch=20)
        live = records[20:]
        await client.create_topic("routes.b", Kind.LOG)
        await client.append("routes.b", [Record(data=b"x" * size) for size in (0, 1, 2, 3, 4, 700)] + [Record()])
        read = parse_options({"store": address, "topic": "routes.*"})
        told = await asyncio.to_thread(stats, spark, StatsOptions(read, str(out), top=2), lambda text: None)
        assert table(
            out / "hours.parquet",
            "SELECT topic, op, sum(records), sum(data_bytes) FROM TABLE GROUP BY ALL ORDER BY ALL",
        ) == [
            ("routes.a", "APPEND", 60, sum(len(record.data or b"") for record in live)),
            ("routes.b", "APPEND", 7, 710),
        ]
        assert table(out / "keys.parquet", "SELECT topic, key, records FROM TABLE ORDER BY records DESC, key") == [
            ("routes.a", b"key-0", 20),
            ("routes.a", b"key-1", 20),
        ]
        assert table(out / "tags.parquet", "SELECT topic, tag, records, last_seq FROM TABLE ORDER BY ALL") == [
            ("routes.a", "even", 30, 79),
            ("routes.a", "odd", 30, 80),
        ]
        sizes = "SELECT data_bytes_below, records FROM TABLE WHERE topic = 'routes.b' ORDER BY ALL"
        assert table(out / "sizes.parquet", sizes) == [(1, 2), (2, 1), (4, 2), (8, 1), (1024, 1)]
        assert table(out / "gaps.parquet", "SELECT * FROM TABLE") == [("routes.a", 1, 20, "CAP")]
        topics = told["topics"]
        assert isinstance(topics, list)
        summary = topics[0]
        assert (summary["records"], summary["lost"], summary["gaps"]) == (60, 20, 1)
        assert summary["hot_keys"][0] == {"key": "key-0", "records": 20}
