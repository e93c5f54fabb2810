"""The job fold-as-of: the past, whole, in a directory of its own."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eddyline.core.model.topic import Kind
from eddyline.spark.jobs.fold_as_of import FoldOptions, TopicFold, fold_as_of
from eddyline.spark.options.read import parse_options
from tests.spark.reader.test_fold_read import entries_at, history
from tests.support.spark.topics import append_all, store_and_client, until_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


async def run_fold(spark: SparkSession, address: str, out: Path, **options: str) -> list[TopicFold]:
    read = parse_options({"store": address, "topic": "routes", "read": "asOf", **options})
    return await asyncio.to_thread(fold_as_of, spark, FoldOptions(read, str(out)), lambda text: None)


def entries_in(directory: Path) -> list[dict[str, object]]:
    table = pa.concat_tables([pq.ParquetFile(path).read() for path in sorted(directory.glob("*.parquet"))])
    for name in ("ts", "source_ts"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(pa.int64()))
    found: list[dict[str, object]] = table.sort_by("seq").to_pylist()
    return found


async def test_a_point_of_the_past_is_written_once_and_whole(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", history(2_000, seed=1), batch=500)
        await until_sealed(client.channel_to(address))
        expected = await entries_at(client, "routes", 1_500)
        await append_all(client, "routes", history(300, seed=2), batch=50)
        (done,) = await run_fold(spark, address, out, asOfSeq="1500", asOfPartitions="3")
        assert (done.rows, done.files, done.error, done.was_there) == (len(expected), 3, "", False)
        directory = out / "topic=routes" / "as_of=1500"
        assert str(directory) == done.path
        epoch = {"epoch": done.epoch}
        assert entries_in(directory) == [
            epoch | {name: row[name] for name in row if name != "topic"} for row in expected
        ]
        assert json.loads((directory / "_manifest.json").read_text())["rows"] == len(expected)
        assert not list((out / "_eddyline").iterdir())
        before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
        (again,) = await run_fold(spark, address, out, asOfSeq="1500", asOfPartitions="1")
        assert (again.rows, again.files, again.bytes, again.was_there) == (done.rows, 3, done.bytes, True)
        assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


async def test_two_runs_at_a_time_leave_one_point(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", history(500, seed=3))
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(run_fold(spark, address, out, asOfSeq="500", asOfPartitions=count))
                for count in ("1", "2")
            ]
        ends = [run.result()[0] for run in runs]
        assert [end.error for end in ends] == ["", ""]
        assert len({(end.rows, end.files) for end in ends}) == 1
        assert [row["seq"] for row in entries_in(out / "topic=routes" / "as_of=500")] == [
            row["seq"] for row in await entries_at(client, "routes", 500)
        ]


async def test_a_topic_that_was_made_again_is_reported_with_its_epoch(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        for _ in range(2):
            await client.create_topic("routes", Kind.KV)
            await append_all(client, "routes", history(10, seed=4))
            (done,) = await run_fold(spark, address, out, asOfSeq="10")
            await client.delete_topic("routes")
        assert done.error == "EPOCH_MISMATCH"
        assert "choose another directory" in done.message
