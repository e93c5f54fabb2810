"""AppendRecords: rows and columns, conditions, retries, and every bad input refused with nothing stored."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

import pytest

from eddyline.v1 import apply_pb2, log_pb2, topic_pb2
from eddyline.v1.log_pb2 import AppendRecordsRequest, CreateIfMissing, ExpectedVersion, ReadRecordsRequest
from eddyline.v1.types_pb2 import (
    OP_APPEND,
    OP_DELETE,
    OP_GAP,
    OP_PUT,
    BinaryColumn,
    ColumnarBatch,
    MetaEntry,
    Record,
    RecordBatch,
    WriterPosition,
)
from tests.store.rpc.requests import column, columns, keyed, keyless, rows
from tests.support.store.served import refused, served_store

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

    from tests.support.store.served import ServedStore

LOG, KV = topic_pb2.TOPIC_KIND_LOG, topic_pb2.TOPIC_KIND_KV
MIB = 1 << 20


async def read_all(store: ServedStore, topic: str) -> list[Record]:
    answer = await store.log.ReadRecords(ReadRecordsRequest(topic=topic, limit=10_000, max_bytes=16 * MIB))
    assert answer.caught_up
    return [record for item in answer.items for record in item.rows.records]


def of_columns(topic: str, batch: ColumnarBatch) -> AppendRecordsRequest:
    return AppendRecordsRequest(topic=topic, columns=batch)


async def test_rows_and_columns_are_stored_alike(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        first = await store.log.AppendRecords(rows("kv", keyed("a", "1"), keyed("b", "2")))
        second = await store.log.AppendRecords(of_columns("kv", columns(key=[b"a", b"b"], data=[b"1", b"2"])))
        assert (first.first_seq, first.last_seq, first.epoch) == (1, 2, made.epoch)
        assert (second.first_seq, second.last_seq, second.deduplicated) == (3, 4, False)
        stored = await read_all(store, "kv")
    assert [(record.key, record.data, record.op) for record in stored] == [
        (b"a", b"1", OP_PUT),
        (b"b", b"2", OP_PUT),
    ] * 2
    assert [record.seq for record in stored] == [1, 2, 3, 4]
    assert {record.ts_ms for record in stored} == {first.ts_ms}


async def test_unset_op_depends_on_the_topics_kind(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.create("log", LOG)
        await store.log.AppendRecords(rows("kv", keyed("a", "1"), Record(key=b"a", op=OP_DELETE)))
        await store.log.AppendRecords(rows("log", keyless("1")))
        assert [record.op for record in await read_all(store, "kv")] == [OP_PUT, OP_DELETE]
        assert [record.op for record in await read_all(store, "log")] == [OP_APPEND]


async def test_append_with_create_makes_a_missing_topic(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        request = rows("kv", keyed("a", "1"))
        request.create.CopyFrom(CreateIfMissing(kind=KV))
        answers = [await store.log.AppendRecords(request) for _ in range(2)]
        assert [answer.first_seq for answer in answers] == [1, 2]
        assert [record.op for record in await read_all(store, "kv")] == [OP_PUT, OP_PUT]
        request = rows("other", keyless("1"))
        request.create.CopyFrom(CreateIfMissing())
        await refused(store.log.AppendRecords(request), "INVALID_ARGUMENT")
        await refused(store.topics.GetTopic(topic_pb2.GetTopicRequest(topic="other")), "TOPIC_NOT_FOUND")


BAD_APPENDS = [
    pytest.param("kv", AppendRecordsRequest(), "INVALID_ARGUMENT", "batch", id="no batch"),
    pytest.param("kv", rows(""), "INVALID_ARGUMENT", "batch", id="no rows"),
    pytest.param("kv", of_columns("", ColumnarBatch()), "INVALID_ARGUMENT", "batch", id="no columns"),
    pytest.param("no such", rows("", keyed("a", "1")), "INVALID_NAME", "topic", id="bad name"),
    pytest.param("nobody", rows("", keyless("1")), "TOPIC_NOT_FOUND", "", id="unknown topic"),
    pytest.param("kv", rows("", keyless("1")), "KEY_REQUIRED", "key", id="no key"),
    pytest.param("kv", of_columns("", columns(data=[b"1"])), "KEY_REQUIRED", "key", id="no key column"),
    pytest.param("kv", rows("", keyed("a", "1"), keyed("", "1")), "KEY_REQUIRED", "key", id="empty key"),
    pytest.param("kv", of_columns("", columns(key=[b""])), "KEY_REQUIRED", "key", id="empty key in a column"),
    pytest.param("kv", rows("", Record(key=b"a", op=OP_APPEND)), "INVALID_OP", "op", id="append to kv"),
    pytest.param("kv", rows("", Record(key=b"a", op=OP_GAP)), "INVALID_OP", "op", id="gap"),
    pytest.param("log", rows("", Record(op=OP_PUT)), "INVALID_OP", "op", id="put to log"),
    pytest.param("kv", rows("", Record(key=b"a", op=9)), "INVALID_OP", "op", id="unknown op"),  # type: ignore[arg-type]
    pytest.param("kv", rows("", Record(key=b"a", seq=1)), "INVALID_ARGUMENT", "seq", id="seq"),
    pytest.param("kv", rows("", Record(key=b"a", ts_ms=1)), "INVALID_ARGUMENT", "seq", id="commit time"),
    pytest.param("kv", rows("", Record(key=b"a", version=b"1")), "INVALID_ARGUMENT", "version", id="version"),
    pytest.param("kv", rows("", Record(key=b"k" * 1025)), "RECORD_TOO_LARGE", "key", id="key"),
    pytest.param("log", rows("", Record(data=bytes(MIB + 1))), "RECORD_TOO_LARGE", "data", id="data"),
    pytest.param("log", rows("", Record(tag="t" * 257)), "RECORD_TOO_LARGE", "tag", id="tag"),
    pytest.param("log", rows("", Record(node="n" * 129)), "RECORD_TOO_LARGE", "node", id="node"),
    pytest.param(
        "log", rows("", Record(meta=[MetaEntry(name="n")] * 65)), "RECORD_TOO_LARGE", "meta", id="meta entries"
    ),
    pytest.param(
        "log",
        rows("", Record(meta=[MetaEntry(name="n", value=bytes(16 << 10))])),
        "RECORD_TOO_LARGE",
        "meta",
        id="meta bytes",
    ),
    pytest.param("log", rows("", *[Record()] * 10_001), "BATCH_TOO_LARGE", "", id="too many rows"),
    pytest.param("log", of_columns("", ColumnarBatch(count=10_001)), "BATCH_TOO_LARGE", "", id="too many columns"),
    pytest.param(
        "log", of_columns("", ColumnarBatch(count=1, first_seq=7)), "MALFORMED_COLUMNS", "first_seq", id="first_seq"
    ),
    pytest.param(
        "log",
        of_columns("", ColumnarBatch(count=2, data=BinaryColumn(offsets=pack("<3I", 0, 2, 1), values=b"x"))),
        "MALFORMED_COLUMNS",
        "data",
        id="offsets out of order",
    ),
    pytest.param(
        "log",
        of_columns("", ColumnarBatch(count=1, data=BinaryColumn(offsets=pack("<2I", 0, 9), values=b"x"))),
        "MALFORMED_COLUMNS",
        "data",
        id="offsets past the end",
    ),
    pytest.param(
        "log",
        of_columns("", ColumnarBatch(count=3, data=column(b"x"))),
        "MALFORMED_COLUMNS",
        "data.offsets",
        id="wrong count",
    ),
    pytest.param(
        "log", of_columns("", ColumnarBatch(count=2, ops=b"\x01")), "MALFORMED_COLUMNS", "ops", id="wrong ops"
    ),
    pytest.param(
        "log",
        of_columns("", ColumnarBatch(count=1, tag=column(b"\xff"))),
        "MALFORMED_COLUMNS",
        "tag",
        id="tag no utf-8",
    ),
    pytest.param(
        "log", of_columns("", ColumnarBatch(count=1, meta=column(b"x"))), "MALFORMED_COLUMNS", "meta", id="bad meta"
    ),
    pytest.param(
        "kv",
        AppendRecordsRequest(rows=RecordBatch(records=[keyed("a", "1")]), idempotency_key="ä" * 65),
        "INVALID_ARGUMENT",
        "idempotency_key",
        id="long idempotency key",
    ),
    pytest.param(
        "kv",
        AppendRecordsRequest(
            rows=RecordBatch(records=[keyed("a", "1")]), expected_versions=[ExpectedVersion(key=b"a")] * 10_001
        ),
        "INVALID_ARGUMENT",
        "expected_versions",
        id="too many conditions",
    ),
    pytest.param(
        "kv",
        AppendRecordsRequest(rows=RecordBatch(records=[keyed("a", "1")]), expected_versions=[ExpectedVersion()]),
        "INVALID_ARGUMENT",
        "expected_versions.key",
        id="condition without key",
    ),
    pytest.param(
        "kv",
        AppendRecordsRequest(
            rows=RecordBatch(records=[keyed("a", "1")]),
            expected_versions=[ExpectedVersion(key=b"a", version=bytes(11))],
        ),
        "INVALID_ARGUMENT",
        "expected_versions.version",
        id="long version",
    ),
    pytest.param(
        "log",
        AppendRecordsRequest(rows=RecordBatch(records=[Record()]), expected_versions=[ExpectedVersion(key=b"a")]),
        "NOT_KV",
        "",
        id="versions of a log",
    ),
    pytest.param(
        "log",
        AppendRecordsRequest(rows=RecordBatch(records=[Record()]), writer=WriterPosition(writer="a b", new=b"1")),
        "INVALID_NAME",
        "writer",
        id="writer name",
    ),
    pytest.param(
        "log",
        AppendRecordsRequest(rows=RecordBatch(records=[Record()]), writer=WriterPosition(writer="w", new=bytes(257))),
        "INVALID_ARGUMENT",
        "writer",
        id="long position",
    ),
    pytest.param(
        "log",
        AppendRecordsRequest(rows=RecordBatch(records=[Record()]), writer=WriterPosition(writer="w")),
        "INVALID_ARGUMENT",
        "writer.new",
        id="no position",
    ),
]


@pytest.mark.parametrize(("topic", "request_", "reason", "field"), BAD_APPENDS)
async def test_bad_append_is_refused_and_nothing_stored(
    tmp_path: Path, topic: str, request_: AppendRecordsRequest, reason: str, field: str
) -> None:
    request = AppendRecordsRequest()
    request.CopyFrom(request_)
    request.topic = topic
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        await store.create("log", LOG)
        error = await refused(store.log.AppendRecords(request), reason)
        assert error.metadata.get("field", "") == field
        assert await store.head("kv") == 0
        assert await store.head("log") == 0


async def test_failed_conditions_are_refused_with_the_stored_state(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        made = await store.create("kv")
        await store.log.AppendRecords(rows("kv", keyed("a", "1")))
        request = rows("kv", keyed("a", "2"))
        request.epoch = made.epoch + 1
        error = await refused(store.log.AppendRecords(request), "EPOCH_MISMATCH")
        assert error.metadata["epoch"] == str(made.epoch)
        request = rows("kv", keyed("a", "2"))
        request.expected_head_seq = 0
        error = await refused(store.log.AppendRecords(request), "HEAD_MISMATCH")
        assert error.metadata["headSeq"] == "1"
        request = rows("kv", keyed("a", "2"))
        request.expected_versions.add(key=b"b")
        request.expected_versions.add(key=b"a")
        error = await refused(store.log.AppendRecords(request), "VERSION_MISMATCH")
        assert (error.metadata["key"], error.metadata["version"]) == (b"a".hex(), (1).to_bytes(8, "big").hex())
        assert await store.head("kv") == 1
        request.expected_versions[1].version = (1).to_bytes(8, "big")
        request.expected_head_seq = 1
        request.epoch = made.epoch
        assert (await store.log.AppendRecords(request)).first_seq == 2


async def test_idempotency_key_answers_a_retry_and_refuses_other_content(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        request = rows("kv", keyed("a", "1"))
        request.idempotency_key = "once"
        first = await store.log.AppendRecords(request)
        again = of_columns("kv", columns(key=[b"a"], data=[b"1"]))
        again.idempotency_key = "once"
        second = await store.log.AppendRecords(again)
        other = rows("kv", keyed("a", "2"))
        other.idempotency_key = "once"
        await refused(store.log.AppendRecords(other), "IDEMPOTENCY_CONFLICT")
        assert await store.head("kv") == 1
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert (second.first_seq, second.last_seq, second.ts_ms) == (first.first_seq, first.last_seq, first.ts_ms)


async def test_writer_positions_make_appends_happen_once(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        request = rows("log", keyless("1"))
        request.writer.CopyFrom(WriterPosition(writer="w", fence=2, new=b"1"))
        assert (await store.log.AppendRecords(request)).first_seq == 1
        again = await store.log.AppendRecords(request)
        assert (again.deduplicated, again.first_seq) == (True, 0)
        request.writer.new = b"2"
        error = await refused(store.log.AppendRecords(request), "STALE_POSITION")
        assert error.metadata["position"] == b"1".hex()
        request.writer.previous = b"1"
        request.writer.fence = 1
        error = await refused(store.log.AppendRecords(request), "STALE_FENCE")
        assert error.metadata["fence"] == "2"
        assert await store.head("log") == 1


async def test_topic_with_a_source_refuses_other_appends(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        definition = apply_pb2.SourceDefinition(name="s", topic="kv", bucket="b")
        await store.apply.PutSource(apply_pb2.PutSourceRequest(definition=definition))
        error = await refused(store.log.AppendRecords(rows("kv", keyed("a", "1"))), "TOPIC_HAS_SOURCE")
        assert error.metadata["source"] == "s"
        assert await store.head("kv") == 0


async def test_largest_append_is_taken(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        answer = await store.log.AppendRecords(rows("log", *[Record()] * 10_000))
        assert (answer.first_seq, answer.last_seq) == (1, 10_000)
        await store.log.AppendRecords(rows("log", Record(data=bytes(MIB))))
        assert await store.head("log") == 10_001


async def test_appends_of_one_caller_keep_their_order(tmp_path: Path) -> None:
    async with served_store(tmp_path / "store") as store:
        await store.create("log", LOG)
        calls = [store.log.AppendRecords(rows("log", keyless(str(number)))) for number in range(50)]
        answers = [await call for call in calls]
        stored = {record.seq: record.data for record in await read_all(store, "log")}
    assert sorted(answer.first_seq for answer in answers) == list(range(1, 51))
    assert [stored[answer.first_seq] for answer in answers] == [str(number).encode() for number in range(50)]


def test_append_answers_are_the_contracts() -> None:
    alone = {field.name for field in log_pb2.AppendRecordsResponse.DESCRIPTOR.fields}
    of_stream = {field.name for field in log_pb2.AppendStreamResponse.DESCRIPTOR.fields}
    assert of_stream == alone | {"error", "outcomes", "appends_max"}
    of_several = {field.name for field in log_pb2.AppendOutcome.DESCRIPTOR.fields}
    assert of_several == alone - {"epoch"} | {"error"}


async def test_many_rows_are_stored_as_few_are_and_bytes_that_are_no_rows_are_refused(tmp_path: Path) -> None:
    records = [keyed(f"k{number}", "v" * (number % 60)) for number in range(500)]
    async with served_store(tmp_path / "store") as store:
        await store.create("kv")
        request = rows("kv", *records)
        assert (await store.log.AppendRecords(request)).last_seq == 500
        start = log_pb2.AppendStreamRequest(start=log_pb2.AppendStart(topic="kv"))
        step = log_pb2.AppendStreamRequest(append=log_pb2.AppendBatch(rows=request.rows))
        answers = [answer async for answer in store.log.AppendStream(iter([start, step]))]
        assert [answer.last_seq for answer in answers] == [1000]
        stored = await read_all(store, "kv")
        raw: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = store.channel.unary_unary(
            "/eddyline.v1.LogService/AppendRecords"
        )
        # A record of zeros: no field has the number 0.
        zeros = AppendRecordsRequest(topic="kv").SerializeToString() + b"\x12\x84\x20" + b"\x0a\x81\x20" + bytes(4097)
        await refused(raw(zeros), "INVALID_ARGUMENT")
    assert [(record.key, record.data) for record in stored] == [(row.key, row.data) for row in records] * 2
