"""Reads of folds, now and at a point: for every key what the store says."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException

from eddyline.core.model.topic import Kind
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Op, Record
from eddyline.spark.read import read
from tests.spark.sessions.collected import Row, rows_of
from tests.spark.sessions.rows_expected import expected_row
from tests.support.spark.topics import append_all, plain_records, store_and_client, until_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from eddyline.client.connect import Client

pytestmark = pytest.mark.spark

KEYS = 40


def history(count: int, seed: int) -> list[Record]:
    """Puts, deletes and purges of few keys."""
    draw = random.Random(seed)
    ops = [Op.PUT] * 6 + [Op.DELETE, Op.PURGE]
    return [
        Record(
            op=draw.choice(ops), key=b"key-%d" % draw.randrange(KEYS), data=b"%d" % number, tag=draw.choice(["a", None])
        )
        for number in range(count)
    ]


async def entries_at(client: Client, topic: str, seq: int) -> list[Row]:
    """The store's value of each key at a point."""
    pages = [await client.get_at(topic, b"key-%d" % number, at_seq=seq) for number in range(KEYS)]
    live = [entry for page in pages for entry in page.entries if entry is not None]
    return sorted((expected_row(topic, entry) for entry in live), key=by_seq)


def by_seq(row: Row) -> int:
    return int(row["seq"])


async def test_a_fold_is_what_the_store_states_at_the_head_and_at_any_point(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", history(3_000, seed=1), batch=500)
        await until_sealed(client.channel_to(address))
        await append_all(client, "routes", history(300, seed=2), batch=50)
        now = await asyncio.to_thread(read, spark, address, topic="routes", kind="fold")
        expected = sorted([expected_row("routes", entry) async for entry in client.range("routes")], key=by_seq)
        assert sorted(await rows_of(now), key=by_seq) == expected
        for seq, shares in ((1, None), (2_117, 3), (3_200, 1)):
            frame = await asyncio.to_thread(
                read, spark, address, topic="routes", kind="asOf", as_of_seq=seq, as_of_partitions=shares
            )
            assert sorted(await rows_of(frame), key=by_seq) == await entries_at(client, "routes", seq)


async def test_a_fold_goes_back_behind_a_trimmed_log_as_far_as_its_base(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", history(2_000, seed=3), batch=500)
        await client.delete_records("routes", before_seq=1_500)
        await until_sealed(client.channel_to(address))
        await client.delete_records("routes", match=Match(MatchField.KEY, MatchKind.EQ, b"key-7"))
        await append_all(client, "routes", history(100, seed=4), batch=50)
        frame = await asyncio.to_thread(
            read, spark, address, topic="routes", kind="fold", as_of_partitions=2, columns=["key", "seq", "data"]
        )
        found = {row["key"]: (row["seq"], row["data"]) for row in await rows_of(frame)}
        assert found == {entry.key: (entry.seq, entry.data) async for entry in client.range("routes")}


async def test_a_point_in_time_is_the_last_record_at_or_before_it(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        at_ms = (await client.append("routes", [Record(op=Op.PUT, key=b"a", data=b"old")])).ts_ms
        while (await client.append("routes", [Record(op=Op.PUT, key=b"a", data=b"new")])).ts_ms == at_ms:
            await client.append("routes", [Record(op=Op.PUT, key=b"a", data=b"old")])
            at_ms = (await client.get_at("routes", b"a", at_seq=3)).entries[0].ts_ms  # type: ignore[union-attr]  # it is live
        expected = (await client.get_at("routes", b"a", at_time_ms=at_ms)).entries[0]
        frame = await asyncio.to_thread(read, spark, address, topic="routes", kind="asOf", as_of_time=at_ms)
        assert expected is not None
        assert [row["data"] for row in await rows_of(frame)] == [expected.data]
        with pytest.raises(AnalysisException, match="asOfTimestamp: this time has not passed"):
            await asyncio.to_thread(read, spark, address, topic="routes", kind="asOf", as_of_time=4_102_444_800_000)
        with pytest.raises(AnalysisException, match="asOfSeq: 99 is above the head"):
            await asyncio.to_thread(read, spark, address, topic="routes", kind="asOf", as_of_seq=99)


async def test_key_prefixes_choose_keys_of_a_fold(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        await client.create_topic("empty", Kind.KV)
        await append_all(client, "routes", plain_records(100, keys=30, op=Op.PUT))
        frame = await asyncio.to_thread(
            read, spark, address, topic=["routes", "empty"], kind="fold", key_prefixes=["key-2"]
        )
        keys = {row["key_text"] for row in await rows_of(frame)}
        assert keys == {"key-2", *(f"key-2{digit}" for digit in range(10))}


async def test_a_topic_without_a_fold_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("log", Kind.LOG)
        with pytest.raises(PySparkException, match="topic log is not a KV topic"):
            await asyncio.to_thread(read, spark, address, topic="log", kind="fold")
