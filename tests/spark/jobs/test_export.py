"""Export: what a topic holds is in Parquet, each record once, run after run, whatever happened to runs before."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from eddyline.core.model.topic import Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op
from eddyline.export.in_process import export_topics
from eddyline.export.out_dir import OutDir
from eddyline.export.run import ExportSizes, TopicExport
from eddyline.export.split.calls import Cluster
from eddyline.spark.jobs.export import ExportOptions, export
from eddyline.spark.options.read import parse_options
from tests.spark.sessions.rows_expected import expected_rows
from tests.support.spark.topics import append_all, odd_records, plain_records, read_all, store_and_client, until_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


async def run_export(
    spark: SparkSession, address: str, out: Path, *, topic: str = "routes", round_records: int = 1 << 40, **options: str
) -> list[TopicExport]:
    read = parse_options({"store": address, "topic": topic, **options})
    return await asyncio.to_thread(export, spark, ExportOptions(read, str(out), round_records), lambda text: None)


def rows_in(out: Path, what: str = "*", order: str = "epoch, seq") -> list[tuple[object, ...]]:
    """By duckdb, partitions and all."""
    files = f"read_parquet('{out}/topic=*/day=*/*.parquet', hive_partitioning=true)"
    found = duckdb.sql(f"SELECT {what} FROM {files} ORDER BY {order}")
    assert found is not None
    return found.fetchall()


def manifests_in(out: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("_eddyline/*/*.manifest.json"))]


def parts_in(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.glob("topic=*/**/*")) if path.is_file()
    }


def all_in(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


async def test_an_export_holds_what_the_client_reads(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes:eu", Kind.LOG)
        await append_all(client, "routes:eu", [*odd_records(), *plain_records(3_000, keys=50)])
        await until_sealed(client.channel_to(address))
        await append_all(client, "routes:eu", plain_records(100))
        (done,) = await run_export(spark, address, out, topic="routes:eu", maxRecordsPerPartition="1000")
        records = await read_all(client, "routes:eu")
        assert (done.rows, done.gaps, done.deleted, done.error) == (len(records), 0, 0, "")
        tables = [pq.ParquetFile(path).read() for path in sorted(out.glob("topic=*/*/*.parquet"))]
        assert len(tables) == done.files > 1
        table = pa.concat_tables(tables)
        for name in ("ts", "source_ts"):
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(name).cast(pa.int64()))
        epoch = (await client.get_topic("routes:eu")).epoch
        expected = [{"epoch": epoch, **row} for row in expected_rows("routes:eu", records)]
        assert table.to_pylist() == [{key: row[key] for key in row if key != "topic"} for row in expected]
        assert rows_in(out, "DISTINCT topic, day = CAST(ts AT TIME ZONE 'UTC' AS DATE)", "1") == [("routes:eu", True)]
        found = await asyncio.to_thread(spark.read.parquet(f"{out}/topic=routes%3Aeu").count)
        assert found == len(records)


async def test_each_run_goes_on_where_the_last_one_ended(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        for name in ("routes.a", "routes.b", "routes.none"):
            await client.create_topic(name, Kind.LOG)
        await append_all(client, "routes.a", plain_records(2_500), batch=500)
        await append_all(client, "routes.b", plain_records(5))
        first = await run_export(spark, address, out, topic="routes.*", round_records=1_000)
        assert [(done.topic, done.rows) for done in first] == [("routes.a", 2_500), ("routes.b", 5), ("routes.none", 0)]
        before = parts_in(out)
        assert [done.rows for done in await run_export(spark, address, out, topic="routes.*")] == [0, 0, 0]
        await append_all(client, "routes.b", plain_records(7))
        second = await run_export(spark, address, out, topic="routes.*")
        assert [(done.topic, done.first_seq, done.end_seq) for done in second if done.rows] == [("routes.b", 6, 13)]
        assert before.items() <= parts_in(out).items()
        assert rows_in(out, "topic, seq", "ALL") == [
            *(("routes.a", seq) for seq in range(1, 2_501)),
            *(("routes.b", seq) for seq in range(1, 13)),
        ]
        spans = [(told["topic"], told["first_seq"], told["end_seq"]) for told in manifests_in(out)]
        assert spans == [
            ("routes.a", 1, 1_001),
            ("routes.a", 1_001, 2_001),
            ("routes.a", 2_001, 2_501),
            ("routes.b", 1, 6),
            ("routes.b", 6, 13),
        ]
        for told in manifests_in(out):
            files = told["files"]
            assert isinstance(files, list)
            for file in files:
                content = (out / file["name"]).read_bytes()
                assert (len(content), xxhash.xxh3_64_hexdigest(content)) == (file["bytes"], file["xxh3"])


async def test_a_run_that_died_is_made_up_for_over_the_same_names(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(3_000), batch=500)
        await until_sealed(client.channel_to(address))
        await run_export(spark, address, out, maxRecordsPerPartition="1000")
        whole = parts_in(out)
        # As a run that died leaves it: a plan, a file that is missing, the beginning of one, one of rows deleted since.
        (manifest,) = out.glob("_eddyline/*/*.manifest.json")
        manifest.unlink()
        lost, *kept = sorted(whole)
        begun = (out / lost).with_name(f"_{(out / lost).name}.0a0b.tmp")
        (out / lost).rename(begun)
        os.utime(begun, (0, 0))
        stale = out / "topic=routes" / "day=1999-01-01" / (out / kept[0]).name
        stale.parent.mkdir()
        stale.write_bytes(whole[kept[0]])
        await append_all(client, "routes", plain_records(10))
        (done,) = await run_export(spark, address, out, maxRecordsPerPartition="500")
        assert (done.first_seq, done.end_seq, done.rows) == (1, 3_011, 3_010)
        assert [told["end_seq"] for told in manifests_in(out)] == [3_001, 3_011]
        found = parts_in(out)
        assert {name: found[name] for name in whole} == whole
        assert len(found) == len(whole) + 1
        assert [row[0] for row in rows_in(out, "seq")] == list(range(1, 3_011))


async def test_two_runs_at_a_time_leave_what_one_would(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(3_000), batch=500)
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(run_export(spark, address, out, maxRecordsPerPartition=records))
                for records in ("500", "700", "1500")
            ]
            await append_all(client, "routes", plain_records(1_000))
        assert [run.result()[0].error for run in runs] == ["", "", ""]
        await run_export(spark, address, out)
        assert [row[0] for row in rows_in(out, "seq")] == list(range(1, 4_001))


async def test_gaps_are_refused_reported_or_rows_as_requested(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.LOG, TopicConfig(cap_records=100))
        await append_all(client, "routes", plain_records(50))
        await run_export(spark, address, out)
        await append_all(client, "routes", plain_records(150), batch=50)
        (refused,) = await run_export(spark, address, out)
        assert (refused.error, refused.rows) == ("GAP", 0)
        assert "seq 51 to 100 lost (CAP)" in refused.message
        assert "--on-gap" in refused.message
        assert len(manifests_in(out)) == 1
        (done,) = await run_export(spark, address, out, onGap="rows")
        assert (done.rows, done.gaps, done.deleted, done.gap_rows) == (100, 50, 0, 1)
        assert manifests_in(out)[1]["lost"] == [{"first_seq": 51, "last_seq": 100, "reason": "CAP"}]
        assert rows_in(out, "seq, op, day, ts")[50] == (100, "GAP", None, None)
        await append_all(client, "routes", plain_records(120), batch=60)
        (told,) = await run_export(spark, address, out, onGap="warn")
        assert (told.rows, told.gaps, told.gap_rows) == (100, 20, 0)
        assert rows_in(out, "count(*), count(DISTINCT seq)", "1") == [(251, 251)]


async def test_what_was_deleted_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", plain_records(100, keys=10, op=Op.PUT))
        await client.delete_records("routes", match=Match(MatchField.KEY, MatchKind.EQ, b"key-3"))
        (done,) = await run_export(spark, address, out)
        assert done.rows + done.gaps + done.deleted == done.end_seq - done.first_seq
        assert (done.deleted, done.gaps) == (10, 0)
        assert rows_in(out, "count(*)", "1") == [(done.rows,)]


async def test_a_topic_that_was_made_again_begins_again_and_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20), batch=10)
        await run_export(spark, address, out, maxRecordsPerPartition="10")
        old = (await client.get_topic("routes")).epoch
        (manifest,) = out.glob("_eddyline/*/*.manifest.json")
        manifest.unlink()
        min(out.glob("topic=*/*/*.parquet")).unlink()
        await client.delete_topic("routes")
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(5))
        (refused,) = await run_export(spark, address, out)
        assert refused.error == "GAP"
        assert f"1 to 20 of its epoch {old}" in refused.message
        (done,) = await run_export(spark, address, out, onGap="warn")
        assert (done.rows, done.abandoned) == (5, [{"epoch": old, "rows": 10, "gaps": 10}])
        assert done.recreated_from == old
        assert rows_in(out, "epoch, seq") == [
            *((old, seq) for seq in range(11, 21)),
            *((done.epoch, seq) for seq in range(1, 6)),
        ]


async def test_a_store_that_went_back_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20))
        await run_export(spark, address, out)
        (manifest,) = out.glob("_eddyline/*/*.manifest.json")
        manifest.rename(manifest.with_name(manifest.name.replace(f"{21:020d}", f"{31:020d}")))
        (refused,) = await run_export(spark, address, out)
        assert refused.error == "CURSOR_AHEAD"
        assert "exported up to 30, and its head is 20" in refused.message


async def test_a_directory_that_cannot_be_written_to_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20))
        (tmp_path / "file").write_bytes(b"")
        (refused,) = await run_export(spark, address, tmp_path / "file" / "out")
        assert (refused.rows, refused.error) == (0, "NotADirectoryError")


async def test_exports_of_another_store_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    for name, error in (("one", ""), ("two", "OTHER_TOPIC")):
        async with store_and_client(tmp_path / name) as (address, client):
            await client.create_topic("routes", Kind.LOG)
            await append_all(client, "routes", plain_records(30))
            (done,) = await run_export(spark, address, tmp_path / "out")
            assert done.error == error


async def test_a_file_that_changed_before_its_manifest_is_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        out = tmp_path / "out"
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20))
        monkeypatch.setattr(OutDir, "sizes", lambda self, names: [None for _ in names])
        (refused,) = await run_export(spark, address, out)
        assert refused.error == "FILE_CHANGED"
        monkeypatch.undo()
        (done,) = await run_export(spark, address, out)
        assert (done.rows, done.error) == (20, "")


async def test_command_writes_the_same_files_as_the_job(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "store") as (address, client):
        await client.create_topic("routes:eu", Kind.LOG)
        await append_all(client, "routes:eu", [*odd_records(), *plain_records(3_000, keys=50)])
        await until_sealed(client.channel_to(address))
        await append_all(client, "routes:eu", plain_records(100))
        await run_export(spark, address, tmp_path / "job", topic="routes:eu", maxRecordsPerPartition="1000")
        # a plan depends on what the store has sealed by then, and files on their plan alone: both carry out the same one
        (plan,) = (tmp_path / "job").glob("_eddyline/*/*.plan.json")
        same = tmp_path / "command" / plan.relative_to(tmp_path / "job")
        same.parent.mkdir(parents=True)
        same.write_bytes(plan.read_bytes())

        def by_command() -> list[TopicExport]:
            with Cluster([address], patience_s=60) as cluster:
                return export_topics(
                    cluster,
                    ["routes:eu"],
                    OutDir(str(tmp_path / "command")),
                    on_gap="fail",
                    sizes=ExportSizes(records_per_file=1_000),
                    tell=lambda text: None,
                    stop=threading.Event(),
                )

        (done,) = await asyncio.to_thread(by_command)
    assert (done.error, done.files > 1) == ("", True)
    job, command = (
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "job", tmp_path / "command")
    )
    assert command == job
