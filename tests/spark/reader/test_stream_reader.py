"""The stream reader by itself: where it begins, how far a micro-batch goes, and what ends it."""

from __future__ import annotations

import asyncio
import json
import pickle
import resource
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from eddyline.core.errors import CursorAhead, EpochMismatch, TopicNotFound
from eddyline.core.model.topic import ConfigChange, Kind
from eddyline.spark.options.read import parse_options
from eddyline.spark.reader.plan import ReadPartition
from eddyline.spark.reader.stream import StreamReader, shared_out
from eddyline.spark.schema import SCHEMA
from tests.support.spark.topics import append_all, plain_records, store_and_client

if TYPE_CHECKING:
    from pathlib import Path

    from eddyline.spark.reader.stream import Offset

pytestmark = pytest.mark.spark

ALL = ReadAllAvailable()


def reader_of(address: str, **options: str) -> StreamReader:
    return StreamReader(parse_options({"store": address, "topics": "a,b", **options}), SCHEMA)


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50)), st.integers(1, 120))
def test_a_limit_is_used_up_and_never_passed(backlogs: dict[str, int], most: int) -> None:
    taken = shared_out(backlogs, most)
    assert all(0 <= taken[name] <= backlogs[name] for name in backlogs)
    assert sum(taken.values()) == min(most, sum(backlogs.values()))


async def test_it_begins_where_options_state_and_ends_a_batch_at_its_limit(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name, count in (("a", 100), ("b", 7)):
            await client.create_topic(name, Kind.LOG)
            await append_all(client, name, plain_records(count))

        def look() -> None:
            reader = reader_of(address)
            start = reader.initialOffset()
            assert start == {"a": {"epoch": 1, "seq": 0}, "b": {"epoch": 2, "seq": 0}}
            assert reader.latestOffset(start, ALL) == {"a": {"epoch": 1, "seq": 100}, "b": {"epoch": 2, "seq": 7}}
            end = reader.latestOffset(start, ReadMaxRows(20))
            assert end == {"a": {"epoch": 1, "seq": 13}, "b": {"epoch": 2, "seq": 7}}
            pieces = [piece for part in partitions(reader, start, end) for piece in part.pieces]
            assert [(piece.topic, piece.first, piece.last) for piece in pieces] == [("a", 1, 13), ("b", 1, 7)]
            assert reader.partitions(end, end) == []
            assert reader.reportLatestOffset() == {"a": {"epoch": 1, "seq": 100}, "b": {"epoch": 2, "seq": 7}}
            reader.stop()
            late = reader_of(address, startingSeq='{"a": "latest", "b": 5}', maxRecordsPerTrigger="3")
            assert late.initialOffset() == {"a": {"epoch": 1, "seq": 100}, "b": {"epoch": 2, "seq": 4}}
            assert late.getDefaultReadLimit() == ReadMaxRows(3)
            late.stop()

        await asyncio.to_thread(look)


async def test_available_now_ends_at_the_heads_it_was_prepared_with(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("t.a", Kind.LOG)
        await append_all(client, "t.a", plain_records(10))
        reader = reader_of(address, topics="t.*")
        start = await asyncio.to_thread(reader.initialOffset)
        await asyncio.to_thread(reader.prepareForTriggerAvailableNow)
        await append_all(client, "t.a", plain_records(10))
        await client.create_topic("t.b", Kind.LOG)
        await append_all(client, "t.b", plain_records(5))
        end = await asyncio.to_thread(reader.latestOffset, start, ALL)
        # A topic that was found later is put where it begins; what it has comes with another run.
        assert end == {"t.a": {"epoch": 1, "seq": 10}, "t.b": {"epoch": 2, "seq": 0}}
        assert await asyncio.to_thread(reader.latestOffset, end, ALL) == end
        reader.stop()


async def test_a_topic_that_a_prefix_finds_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        await client.create_topic("t.a", Kind.LOG)
        reader = reader_of(address, topics="t.*", startingSeq="latest")
        start = await asyncio.to_thread(reader.initialOffset)
        await client.create_topic("t.b", Kind.LOG)
        await append_all(client, "t.b", plain_records(5))
        found = await asyncio.to_thread(reader.latestOffset, start, ALL)
        assert found["t.b"] == {"epoch": 2, "seq": 0}
        end = await asyncio.to_thread(reader.latestOffset, found, ALL)
        assert end["t.b"] == {"epoch": 2, "seq": 5}
        (part,) = await asyncio.to_thread(partitions, reader, found, end)
        assert [(piece.topic, piece.first, piece.last) for piece in part.pieces] == [("t.b", 1, 5)]
        await client.delete_topic("t.a")
        with pytest.raises(TopicNotFound, match=r"topic t\.a of epoch 1.*new checkpoint"):
            await asyncio.to_thread(reader.latestOffset, end, ALL)
        reader.stop()


async def test_a_topic_made_again_or_set_back_ends_it_and_gives_advice(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name in ("a", "b"):
            await client.create_topic(name, Kind.LOG)
        reader = reader_of(address)
        start = await asyncio.to_thread(reader.initialOffset)
        ahead: Offset = {**start, "b": {"epoch": 2, "seq": 9}}
        with pytest.raises(CursorAhead, match="topic b: the checkpoint is at seq 9, above the head 0"):
            await asyncio.to_thread(reader.latestOffset, ahead, ALL)
        await client.delete_topic("a")
        await client.create_topic("a", Kind.LOG)
        with pytest.raises(EpochMismatch, match=r"topic a of epoch 1.*recreated.*new checkpoint"):
            await asyncio.to_thread(reader.latestOffset, start, ALL)
        reader.stop()


async def test_a_thousand_idle_triggers_leave_its_memory_as_it_was(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name in ("a", "b"):
            await client.create_topic(name, Kind.LOG)
            await append_all(client, name, plain_records(3))
        reader = reader_of(address)

        def idle(triggers: int, start: str) -> str:
            for _ in range(triggers):
                now = json.dumps(reader.latestOffset(json.loads(start), ALL))
                reader.reportLatestOffset()
                assert now == start
            return start

        def look() -> tuple[int, int]:
            start = json.dumps(reader.latestOffset(reader.initialOffset(), ALL))
            idle(200, start)
            tracemalloc.start()
            before_kib, before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, tracemalloc.get_traced_memory()[0]
            idle(1_000, start)
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            return grown, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib

        grown_bytes, grown_kib = await asyncio.to_thread(look)
        assert grown_bytes < 100_000
        assert grown_kib < 8_192
        reader.stop()


async def test_a_micro_batch_accounts_for_every_seq_between_its_offsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name in ("a", "b"):
            await client.create_topic(name, Kind.LOG)
        await append_all(client, "a", plain_records(30), batch=10)
        reader = reader_of(address, tags="even", onGap="warn")
        start = await asyncio.to_thread(reader.initialOffset)
        end = await asyncio.to_thread(reader.latestOffset, start, ALL)
        await client.update_topic("a", ConfigChange(cap_records=20))
        await client.delete_records("a", before_seq=15)
        parts = await asyncio.to_thread(partitions, reader, start, end)
        rows = await asyncio.to_thread(lambda: sum(batch.num_rows for part in parts for batch in reader.read(part)))
        reader.stop()
        assert rows == 8
        told = [record.getMessage() for record in caplog.records if record.name == "eddyline.spark"]
        assert told == [
            "records lost: topic a: seq 1 to 10 lost (CAP)",
            "split read: topic=a first=1 last=14 rows=0 gaps=10 deleted=4 hidden=0",
            "split read: topic=a first=15 last=30 rows=8 gaps=0 deleted=0 hidden=8",
        ]


async def test_it_travels_without_its_channels(tmp_path: Path) -> None:
    async with store_and_client(tmp_path) as (address, client):
        for name in ("a", "b"):
            await client.create_topic(name, Kind.LOG)
        await append_all(client, "a", plain_records(3))
        reader = reader_of(address)
        start = await asyncio.to_thread(reader.initialOffset)
        end = await asyncio.to_thread(reader.latestOffset, start, ALL)
        parts = pickle.loads(pickle.dumps(await asyncio.to_thread(partitions, reader, start, end)))
        there = pickle.loads(pickle.dumps(reader))
        reader.stop()
        batches = await asyncio.to_thread(lambda: [batch for part in parts for batch in there.read(part)])
        assert [seq for batch in batches for seq in batch.column("seq").to_pylist()] == [1, 2, 3]


def partitions(reader: StreamReader, start: Offset, end: Offset) -> list[ReadPartition]:
    found = list(reader.partitions(start, end))
    assert all(isinstance(part, ReadPartition) for part in found)
    return found  # type: ignore[return-value]  # just seen
