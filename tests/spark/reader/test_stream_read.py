"""Streams of topics in Spark: micro-batches, restarts from their checkpoint, gaps, and checkpoints with a file missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

from eddyline.core.model.topic import ConfigChange, Kind
from eddyline.spark.checkpoint import main, read_checkpoint
from eddyline.spark.read import read
from tests.support.spark.topics import append_all, plain_records, store_and_client

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def drain(spark: SparkSession, store: str, directory: Path, **options: Any) -> list[dict[str, Any]]:
    """Run a stream until it has what was there, into Parquet files; the progress of its micro-batches that had rows."""
    frame = read(spark, store, topic="routes", stream=True, columns=["seq", "op"], **options)
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "out"))
    )
    try:
        query.awaitTermination()
        return [dict(progress) for progress in query.recentProgress if progress["numInputRows"]]
    finally:
        query.stop()


def seqs_in(directory: Path) -> list[int]:
    found: list[int] = sorted(pq.read_table(directory / "out").column("seq").to_pylist())
    return found


async def test_f02_the_checkpoint_wins_over_options_and_f06_a_missing_offsets_file_is_explained(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with store_and_client(tmp_path / "data") as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(25))
        first = await asyncio.to_thread(drain, spark, address, tmp_path, max_records_per_trigger=10)
        assert [(batch["batchId"], batch["numInputRows"]) for batch in first] == [(0, 10), (1, 10), (2, 5)]
        await append_all(client, "routes", plain_records(4))
        again = await asyncio.to_thread(drain, spark, address, tmp_path, starting_seq="earliest")
        assert [(batch["batchId"], batch["numInputRows"]) for batch in again] == [(3, 4)]
        assert seqs_in(tmp_path) == list(range(1, 30))
        assert main([str(tmp_path / "checkpoint")]) == 0

        last = read_checkpoint(str(tmp_path / "checkpoint"))
        assert (last.planned, last.committed, last.places) == ((0, 1, 2, 3), (0, 1, 2, 3), {"routes": 29})
        for batch in (2, 3):
            (tmp_path / "checkpoint" / "offsets" / str(batch)).unlink()
            (tmp_path / "checkpoint" / "offsets" / f".{batch}.crc").unlink(missing_ok=True)
        capsys.readouterr()
        assert main([str(tmp_path / "checkpoint")]) == 1
        told = capsys.readouterr().out
        assert "missing: offsets/2, offsets/3" in told
        assert 'startingSeq={"routes": 21}' in told
        await append_all(client, "routes", plain_records(2))
        with pytest.raises(StreamingQueryException):
            await asyncio.to_thread(drain, spark, address, tmp_path)
        anew = read_checkpoint(str(tmp_path / "checkpoint")).starting_seq
        assert await asyncio.to_thread(drain, spark, address, tmp_path / "anew", starting_seq=anew)
        assert seqs_in(tmp_path / "anew") == list(range(21, 32))


async def test_a_loss_ends_a_stream_until_a_policy_is_set(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "data") as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(10), batch=5)
        await asyncio.to_thread(drain, spark, address, tmp_path)
        await client.update_topic("routes", ConfigChange(cap_records=5))
        await append_all(client, "routes", plain_records(20), batch=5)
        with pytest.raises(StreamingQueryException, match=r"seq 11 to 25 lost \(CAP\).*onGap"):
            await asyncio.to_thread(drain, spark, address, tmp_path)
        await asyncio.to_thread(drain, spark, address, tmp_path, on_gap="rows")
        assert seqs_in(tmp_path) == [*range(1, 11), *range(25, 31)]
        await client.delete_topic("routes")
        await client.create_topic("routes", Kind.LOG)
        with pytest.raises(StreamingQueryException, match=r"topic routes of epoch 1.*recreated.*new checkpoint"):
            await asyncio.to_thread(drain, spark, address, tmp_path)
