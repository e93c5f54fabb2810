"""Losses are reported as `onGap` says, deleted records are absent, and the sums close."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from eddyline.core.model.topic import ConfigChange, Kind, TopicConfig
from eddyline.core.records.match import Match, MatchField, MatchKind
from eddyline.core.records.record import Gap, Op, Record
from eddyline.export.split.calls import Cluster
from eddyline.export.split.pieces import Account
from eddyline.export.split.pull import SplitPull
from eddyline.spark.options.read import parse_options
from eddyline.spark.read import read
from eddyline.spark.reader.plan import pin, plan_log
from tests.spark.sessions.collected import count_of, rows_of
from tests.support.spark.topics import append_all, plain_records, store_and_client, until_sealed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def accounts(address: str, **options: str) -> tuple[int, Account]:
    """Length of a read's range, and what became of it by the accounts of its pieces."""
    parsed = parse_options({"store": address, "topic": "routes", **options})
    with Cluster(parsed.stores, patience_s=10) as cluster:
        (cut,) = pin(cluster, parsed)
        total = Account()
        for piece in plan_log(cluster, cut, parsed):
            pull = SplitPull(cluster, piece, records=parsed.records, columns=[])
            for _ in pull.items():
                pass
            total += pull.account
    return cut.end_seq - cut.first_seq, total


async def test_f04_deleted_records_are_no_error_and_a_loss_is_one_row(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        marked = [
            record._replace(tag="doomed") if 5 <= at <= 9 else record for at, record in enumerate(plain_records(20), 1)
        ]
        await append_all(client, "routes", marked)
        await until_sealed(client.channel_to(address))
        await client.delete_records("routes", match=Match(MatchField.TAG, MatchKind.EQ, b"doomed"))
        frame = await asyncio.to_thread(read, spark, address, topic="routes", starting_seq=1, ending_seq=21)
        assert [row["seq"] for row in await rows_of(frame)] == [*range(1, 5), *range(10, 21)]
        assert accounts(address) == (20, Account(rows=15, deleted=5))

        await client.update_topic("routes", ConfigChange(cap_records=10))
        with_gap = await asyncio.to_thread(read, spark, address, topic="routes", starting_seq=1, on_gap="rows")
        rows = await rows_of(with_gap)
        assert [(row["seq"], row["op"]) for row in rows] == [(10, "GAP"), *((seq, "APPEND") for seq in range(11, 21))]
        told = {entry["name"]: entry["value"] for entry in rows[0]["meta"]}
        assert told == {"first_seq": b"1", "last_seq": b"10", "reason": b"CAP"}
        assert accounts(address, startingSeq="1") == (20, Account(rows=10, gaps=10))


async def test_a_loss_fails_unless_a_policy_is_set(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG, TopicConfig(cap_records=10))
        await append_all(client, "routes", plain_records(30), batch=5)
        load = partial(read, spark, address, topic="routes", starting_seq=11)
        with pytest.raises(PySparkException, match=r"topic routes: seq 11 to 20 lost \(CAP\).*onGap"):
            await count_of(await asyncio.to_thread(load))
        warned = await asyncio.to_thread(load, on_gap="warn")
        assert [row["seq"] for row in await rows_of(warned)] == list(range(21, 31))
        told = await asyncio.to_thread(load, on_gap="rows", columns=["seq", "op"])
        assert (await rows_of(told))[0] == {"seq": 20, "op": "GAP"}
        alone = await asyncio.to_thread(load, kind="gaps")
        assert [row["seq"] for row in await rows_of(alone)] == [20]
        whole = await asyncio.to_thread(read, spark, address, topic="routes")
        assert await count_of(whole) == 10


async def test_a_loss_after_the_load_is_reported_too(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20), batch=5)
        frame = await asyncio.to_thread(read, spark, address, topic="routes")
        assert await count_of(frame) == 20
        await client.update_topic("routes", ConfigChange(cap_records=5))
        with pytest.raises(PySparkException, match=r"seq 1 to 15 lost \(CAP\)"):
            await count_of(frame)


async def test_a_filter_hides_no_loss_and_its_sum_closes(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(4_000), batch=500)
        await until_sealed(client.channel_to(address))
        await append_all(client, "routes", plain_records(100))
        await client.delete_records("routes", match=Match(MatchField.TAG, MatchKind.EQ, b"odd"), before_seq=101)
        await client.update_topic("routes", ConfigChange(cap_records=4_000))
        seqs, total = await asyncio.to_thread(accounts, address, startingSeq="2", tags="odd")
        assert seqs == 4_099 == total.total
        kept = [item async for item in client.read("routes", after=1)]
        gaps = [item for item in kept if isinstance(item, Gap)]
        assert total.rows == sum(1 for item in kept if isinstance(item, Record) and item.tag == "odd")
        assert total.gaps == sum(gap.last_seq - gap.first_seq + 1 for gap in gaps) > 0


async def test_a_topic_made_again_after_the_load_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", plain_records(10, keys=3, op=Op.PUT))
        frame = await asyncio.to_thread(read, spark, address, topic="routes")
        await client.delete_topic("routes")
        with pytest.raises(
            PySparkException, match=r"topic routes of epoch 1, .* is gone: it was deleted\. Start the read again"
        ):
            await count_of(frame)
        await client.create_topic("routes", Kind.LOG)
        await append_all(client, "routes", plain_records(20))
        with pytest.raises(PySparkException, match="it was deleted and recreated"):
            await count_of(frame)


async def test_a_fold_that_one_key_is_missing_of_is_refused_as_a_whole_with_the_option(
    spark: SparkSession, tmp_path: Path
) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("routes", Kind.KV)
        await append_all(client, "routes", plain_records(10, keys=2, op=Op.PUT))
        await client.delete_records("routes", before_seq=9)
        frame = await asyncio.to_thread(read, spark, address, topic="routes", kind="asOf", as_of_seq=5)
        with pytest.raises(PySparkException) as refusal:
            await count_of(frame)
        told = str(refusal.value)
        assert "option asOfSeq, asOfTimestamp: topic routes no longer has all values of this point" in told
        assert "this key" not in told
