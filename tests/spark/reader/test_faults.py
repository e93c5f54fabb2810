"""Stores and executors that die in mid read: the right rows, each once, or a clear error; and sessions of other kinds."""

from __future__ import annotations

import asyncio
import pickle
import threading
from random import Random
from typing import TYPE_CHECKING

import pytest

from eddyline.client.connect import connect
from eddyline.core.errors import NotReady
from eddyline.core.model.topic import Kind
from eddyline.spark.options.read import parse_options
from eddyline.spark.read import read
from eddyline.spark.reader.batch import BatchReader
from eddyline.spark.schema import SCHEMA
from tests.spark.sessions.programs import found_by
from tests.support.cluster.processes import KillableStore
from tests.support.spark.topics import SEALS_OFTEN, append_all, plain_records, store_and_client, until_sealed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WAIT_S = 120.0


def batches_of(address: str, **options: str) -> Iterator[pa.RecordBatch]:
    """The plan that these tasks read."""
    reader = BatchReader(parse_options({"store": address, "topic": "routes", **options}), SCHEMA, None)
    for part in reader.partitions():
        yield from reader.read(part)


async def test_a_read_goes_on_where_a_killed_store_broke_it_off(tmp_path: Path) -> None:
    payload = b"x" * 4_000
    with KillableStore(tmp_path, **SEALS_OFTEN) as store:
        async with connect(store.address) as client:
            await client.create_topic("routes", Kind.LOG)
            records = [record._replace(data=payload) for record in plain_records(20_000)]
            await append_all(client, "routes", records, batch=1_000)
        batches = await asyncio.to_thread(batches_of, store.address)
        first = await asyncio.to_thread(next, batches)
        store.kill()
        rest = asyncio.to_thread(list, batches)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(rest)
            await asyncio.to_thread(store.start)
        seqs = [seq for batch in (first, *reading.result()) for seq in batch.column("seq").to_pylist()]
        assert seqs == list(range(1, 20_001))


async def test_a_store_that_stays_away_is_an_error_when_patience_ends(tmp_path: Path) -> None:
    with KillableStore(tmp_path, **SEALS_OFTEN) as store:
        async with connect(store.address) as client:
            await client.create_topic("routes", Kind.LOG)
            random = Random(1)  # what compresses would be on its way as a whole before the store is killed
            records = [record._replace(data=random.randbytes(4_000)) for record in plain_records(20_000)]
            await append_all(client, "routes", records, batch=1_000)
        batches = await asyncio.to_thread(batches_of, store.address, patienceSeconds="1")
        await asyncio.to_thread(next, batches)
        store.kill()
        with pytest.raises(NotReady):
            await asyncio.to_thread(list, batches)


def waiting(directory: str) -> object:
    """A function for `mapInArrow` that says when its first rows came, and waits till it may go on."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        for batch in batches:
            Path(directory, "begun").touch()
            for _ in range(int(WAIT_S / 0.05)):
                if Path(directory, "go").exists():
                    break
                threading.Event().wait(0.05)
            yield batch

    return wait


async def test_a_job_survives_a_store_killed_and_started_in_mid_scan(spark: SparkSession, tmp_path: Path) -> None:
    with KillableStore(tmp_path / "data", **SEALS_OFTEN) as store:
        async with connect(store.address) as client:
            await client.create_topic("routes", Kind.LOG)
            records = [record._replace(data=b"x" * 4_000) for record in plain_records(30_000)]
            await append_all(client, "routes", records, batch=1_000)
        frame = await asyncio.to_thread(read, spark, store.address, topic="routes", columns=["seq", "data"])
        mapped = frame.mapInArrow(waiting(str(tmp_path)), "seq bigint, data binary")  # type: ignore[arg-type]  # it is one
        counted = mapped.selectExpr("count(*) AS rows", "count(DISTINCT seq) AS seqs", "sum(length(data)) AS bytes")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(asyncio.to_thread(counted.collect))
            async with asyncio.timeout(WAIT_S):
                await asyncio.to_thread(_wait_for, tmp_path / "begun")
            store.kill()
            await asyncio.to_thread(store.start)
            (tmp_path / "go").touch()
        assert running.result()[0].asDict() == {"rows": 30_000, "seqs": 30_000, "bytes": 30_000 * 4_000}


async def test_f12_a_killed_executor_and_speculation_change_no_row(tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "data") as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(8_000), batch=500)
        await until_sealed(client.channel_to(address))
        found = await found_by("tests.spark.sessions.cluster_session", address, str(tmp_path / "out"))
        assert found["partitions"] >= 8
        assert (found["rows"], found["seqs"], found["last"]) == (8_000, 8_000, 8_000)


async def test_a_connect_session_reads_and_streams_the_same(tmp_path: Path) -> None:
    async with store_and_client(tmp_path / "data") as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(30, keys=4))
        found = await found_by("tests.spark.sessions.connect_session", address, str(tmp_path))
        assert found["rows"] == [[seq, f"key-{(seq - 1) % 4}", f"value-{seq - 1}"] for seq in range(1, 31)]
        assert found["streamed"] == 30
        assert "option columns: there is no nothing" in found["refusal"]


async def test_readers_and_partitions_travel_to_tasks(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(10))
        reader = BatchReader(parse_options({"store": address, "topic": "routes"}), SCHEMA, None)
        parts = await asyncio.to_thread(reader.partitions)
        there, sent = pickle.loads(pickle.dumps(reader)), pickle.loads(pickle.dumps(parts))
        (batch,) = await asyncio.to_thread(lambda: [batch for part in sent for batch in there.read(part)])
        assert batch.column("seq").to_pylist() == list(range(1, 11))


def _wait_for(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.05)
