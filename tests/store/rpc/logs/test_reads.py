"""ReadRecords: bounds, formats, filters, waiting, and every refusal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from eddyline.core.errors import CursorAhead
from eddyline.v1 import topic_pb2
from eddyline.v1.log_pb2 import ReadRecordsRequest, RecordFilter
from eddyline.v1.types_pb2 import (
    BATCH_FORMAT_COLUMNS,
    BATCH_FORMAT_ROWS,
    GAP_REASON_RECREATED,
    OP_DELETE,
    OP_PUT,
    Record,
)
from tests.store.rpc.requests import keyed, keyless, rows
from tests.support.store.served import refused, served_store, until

if TYPE_CHECKING:
    from pathlib import Path

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV
MIB = 1 << 20


async def test_read_returns_head_and_earliest_seq(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("log", LOG)
        await store.log.AppendRecords(rows("log", *[keyless(str(number)) for number in range(5)]))
        first = await store.log.ReadRecords(ReadRecordsRequest(topic="log", limit=2))
        assert [record.seq for record in first.items[0].rows.records] == [1, 2]
        assert (first.next_after_seq, first.head_seq, first.earliest_seq) == (2, 5, 1)
        assert (first.caught_up, first.lag, first.epoch) == (False, 3, made.epoch)
        rest = await store.log.ReadRecords(ReadRecordsRequest(topic="log", after_seq=2))
        assert [record.seq for record in rest.items[0].rows.records] == [3, 4, 5]
        assert (rest.caught_up, rest.lag) == (True, 0)
        assert not (await store.log.ReadRecords(ReadRecordsRequest(topic="log", after_seq=5))).items


async def test_records_are_encoded_as_requested(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", "2")))
        read = ReadRecordsRequest(topic="kv", format=BATCH_FORMAT_COLUMNS)
        columns = (await store.log.ReadRecords(read)).items[0].columns
        assert (columns.count, columns.first_seq, columns.key.values, columns.data.values) == (2, 1, b"ab", b"12")
        assert columns.ops == bytes([OP_PUT, OP_PUT])
        for asked in (0, BATCH_FORMAT_ROWS):
            read = ReadRecordsRequest(topic="kv", format=asked)  # type: ignore[arg-type]
            records = (await store.log.ReadRecords(read)).items[0].rows.records
            assert [record.version for record in records] == [(1).to_bytes(8, "big"), (2).to_bytes(8, "big")]


async def test_filter_hides_records_and_moves_the_cursor(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.log.AppendRecords(
            rows(
                "kv",
                Record(key=b"a.1", tag="x", node="n"),
                Record(key=b"a.2", tag="y"),
                Record(key=b"b.1", tag="x"),
                Record(key=b"a.3", op=OP_DELETE),
            )
        )

        async def found(**conditions: object) -> list[bytes]:
            asked = RecordFilter(**conditions)  # type: ignore[arg-type]
            answer = await store.log.ReadRecords(ReadRecordsRequest(topic="kv", filter=asked))
            assert answer.caught_up
            return [record.key for item in answer.items for record in item.rows.records]

        assert await found(key_prefixes=[b"a."]) == [b"a.1", b"a.2", b"a.3"]
        assert await found(tags=["x"]) == [b"a.1", b"b.1"]
        assert await found(exclude_nodes=["n"]) == [b"a.2", b"b.1", b"a.3"]
        assert await found(ops=[OP_DELETE]) == [b"a.3"]
        assert await found(key_prefixes=[b"a.", b"b."], tags=["x"], exclude_nodes=["n"]) == [b"b.1"]
        assert await found(key_prefixes=[b"c"]) == []


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        pytest.param(ReadRecordsRequest(topic="no such"), "INVALID_NAME", "topic", id="bad name"),
        pytest.param(ReadRecordsRequest(topic="nobody"), "TOPIC_NOT_FOUND", "", id="unknown topic"),
        pytest.param(ReadRecordsRequest(topic="log", limit=10_001), "INVALID_ARGUMENT", "limit", id="limit"),
        pytest.param(
            ReadRecordsRequest(topic="log", max_bytes=(16 << 20) + 1), "INVALID_ARGUMENT", "max_bytes", id="bytes"
        ),
        pytest.param(ReadRecordsRequest(topic="log", wait_ms=30_001), "INVALID_ARGUMENT", "wait_ms", id="wait"),
        pytest.param(ReadRecordsRequest(topic="log", format=7), "INVALID_ARGUMENT", "format", id="format"),  # type: ignore[arg-type]
        pytest.param(
            ReadRecordsRequest(topic="log", filter=RecordFilter(ops=[0])),  # type: ignore[list-item]
            "INVALID_ARGUMENT",
            "filter.ops",
            id="op",
        ),
        pytest.param(
            ReadRecordsRequest(topic="log", filter=RecordFilter(tags=["t"] * 1_001)),
            "INVALID_ARGUMENT",
            "filter.tags",
            id="conditions",
        ),
        pytest.param(ReadRecordsRequest(topic="log", after_seq=2), "CURSOR_AHEAD", "", id="cursor ahead"),
    ],
)
async def test_bad_read_is_refused(tmp_path: Path, request_: ReadRecordsRequest, reason: str, field: str) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        await store.log.AppendRecords(rows("log", keyless("1")))
        error = await refused(store.log.ReadRecords(request_), reason)
        assert error.metadata.get("field", "") == field
        if isinstance(error, CursorAhead):
            assert error.head_seq == 1


async def test_cursor_of_another_epoch_gets_a_gap_then_all(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        old = await store.create("log", LOG)
        await store.topics.DeleteTopic(topic_pb2.DeleteTopicRequest(topic="log"))
        new = await store.create("log", LOG)
        await store.log.AppendRecords(rows("log", keyless("1")))
        answer = await store.log.ReadRecords(ReadRecordsRequest(topic="log", after_seq=9, epoch=old.epoch))
        gap = answer.items[0].gap
        assert (gap.reason, gap.old_epoch, gap.new_epoch) == (GAP_REASON_RECREATED, old.epoch, new.epoch)
        assert answer.items[1].rows.records[0].seq == 1


async def test_large_records_come_one_at_least(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        await store.log.AppendRecords(rows("log", *[Record(data=bytes(MIB - 100))] * 3))
        answer = await store.log.ReadRecords(ReadRecordsRequest(topic="log", max_bytes=10))
        assert len(answer.items[0].rows.records) == 1
        assert answer.next_after_seq == 1


async def test_level_reader_waits_for_the_next_record(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("log", LOG)
        timers = store.clock.pending

        async def read() -> list[int]:
            answer = await store.log.ReadRecords(ReadRecordsRequest(topic="log", wait_ms=30_000))
            return [record.seq for record in answer.items[0].rows.records]

        reading = tasks.create_task(read())
        await until(lambda: store.clock.pending > timers)
        await store.log.AppendRecords(rows("log", keyless("1")))
        assert await reading == [1]


async def test_wait_ends_with_an_empty_answer(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("log", LOG)
        timers = store.clock.pending

        async def read() -> int:
            return len((await store.log.ReadRecords(ReadRecordsRequest(topic="log", wait_ms=5_000))).items)

        reading = tasks.create_task(read())
        await until(lambda: store.clock.pending > timers)
        await store.clock.pass_time(5)
        assert await reading == 0


async def test_waiting_read_ends_when_the_store_stops(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store, asyncio.TaskGroup() as tasks:
        await store.create("log", LOG)
        timers = store.clock.pending
        call = store.log.ReadRecords(ReadRecordsRequest(topic="log", wait_ms=30_000))
        reading = tasks.create_task(refused(call, "NOT_READY"))
        await until(lambda: store.clock.pending > timers)
        store.handle.close()
        await reading
