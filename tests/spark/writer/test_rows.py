"""Rows in Arrow become the batch that a client's own records would be, or an error that names the row and the column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import EddylineError
from eddyline.core.model.topic import Kind
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import META_ENTRIES_MAX, MetaEntry, Op, Record
from eddyline.spark.writer.rows import WRITTEN, check_columns, rows_to_batch
from tests.support.models.batches import appends, buffers_of
from tests.support.spark.arrow_rows import META, ROW_SCHEMA, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.spark


def as_of_kind(records: Sequence[Record], kind: Kind) -> list[Record]:
    """Without what a client may not set; ops and keys as the kind needs them."""
    if kind is Kind.LOG:
        return [record._replace(version=b"", op=Op.APPEND) for record in records]
    return [
        record._replace(version=b"", op=Op.PUT if record.op == Op.APPEND else record.op, key=record.key or b"k")
        for record in records
    ]


@given(appends(), st.sampled_from(list(Kind)), st.integers(0, 5))
def test_rows_are_what_the_client_would_append(records: list[Record], kind: Kind, cut: int) -> None:
    records = as_of_kind(records, kind)
    rows = rows_of(records)
    check_columns(rows.schema, kind, "t")
    made = rows_to_batch(rows.slice(min(cut, len(records))), kind)
    assert buffers_of(made) == buffers_of(Batch.from_rows(records[cut:]))


@pytest.mark.parametrize("text", [pa.utf8(), pa.large_utf8()])
def test_strings_are_taken_as_their_bytes(text: pa.DataType) -> None:
    rows = pa.record_batch({"key": pa.array(["é", None, ""], text), "data": pa.array([None, "", "x"], text)})
    made = rows_to_batch(rows, Kind.LOG).to_rows()
    assert [(record.key, record.data) for record in made] == [("é".encode(), None), (None, b""), (b"", b"x")]


def test_a_null_op_is_the_topics_own() -> None:
    rows = pa.record_batch({"key": pa.array(["a", "b"]), "op": pa.array([None, "DELETE"])})
    assert [record.op for record in rows_to_batch(rows, Kind.KV).to_rows()] == [Op.PUT, Op.DELETE]
    assert rows_to_batch(rows.slice(0, 1), Kind.LOG).ops is None


def test_a_timestamp_becomes_nanoseconds_and_null_unknown() -> None:
    moments = pa.array([1_000_001, None, -5], pa.timestamp("us", tz="Europe/Berlin"))
    made = rows_to_batch(pa.record_batch({"data": pa.array(["a", "b", "c"]), "source_ts": moments}), Kind.LOG).to_rows()
    assert [record.source_ts_ns for record in made] == [1_000_001_000, 0, -5_000]


def test_a_null_with_bytes_under_it_is_absent() -> None:
    values = pa.array([b"a", b"hidden", b"c"])
    validity = pa.py_buffer(bytes([0b101]))
    hidden = pa.Array.from_buffers(pa.binary(), 3, [validity, *values.buffers()[1:]])
    made = rows_to_batch(pa.record_batch({"data": hidden}), Kind.LOG)
    assert [record.data for record in made.to_rows()] == [b"a", None, b"c"]
    assert buffers_of(made) == buffers_of(Batch.from_rows([Record(data=b"a"), Record(), Record(data=b"c")]))


def invalid_text() -> pa.Array:
    return pa.array([b"ok", b"\xff"]).view(pa.utf8())


@pytest.mark.parametrize(
    ("columns", "kind", "reason", "named"),
    [
        ({"key": pa.array(["k", None])}, Kind.KV, "KEY_REQUIRED", "row 71: a record of a KV topic"),
        ({"key": pa.array(["k", ""])}, Kind.KV, "KEY_REQUIRED", "row 71: a record of a KV topic"),
        (
            {"key": pa.array(["k", "l" * 1025])},
            Kind.LOG,
            "RECORD_TOO_LARGE",
            "row 71: key has 1025 bytes, at most 1024",
        ),
        (
            {"data": pa.array([b"", b"x" * ((1 << 20) + 1)])},
            Kind.LOG,
            "RECORD_TOO_LARGE",
            "row 71: data and meta have 1048577 bytes",
        ),
        (
            {"data": pa.array(["", ""]), "tag": invalid_text()},
            Kind.LOG,
            "MALFORMED_COLUMNS",
            "row 71: tag is not UTF-8",
        ),
        ({"data": pa.array(["", ""]), "op": pa.array([None, "PUT"])}, Kind.LOG, "INVALID_OP", "row 71: op 'PUT'"),
        ({"key": pa.array(["a", "b"]), "op": pa.array(["PUT", "GAP"])}, Kind.KV, "INVALID_OP", "row 71: op 'GAP'"),
        (
            {"data": pa.array(["", ""]), "source_ts": pa.array([0, 1 << 60], pa.timestamp("us", tz="UTC"))},
            Kind.LOG,
            "MALFORMED_COLUMNS",
            "row 71: source_ts is not within the years",
        ),
        (
            {"data": pa.array(["", ""]), "meta": pa.array([[], [{"name": "n", "value": None}]], META)},
            Kind.LOG,
            "MALFORMED_COLUMNS",
            "row 71: a value of meta is null",
        ),
        (
            {"data": pa.array(["", ""]), "meta": pa.array([[], [{"name": "n", "value": b""}, None]], META)},
            Kind.LOG,
            "MALFORMED_COLUMNS",
            "row 71: an entry of meta is null",
        ),
        (
            {
                "data": pa.array(["", ""]),
                "meta": pa.array([[], [{"name": "n", "value": b""}] * (META_ENTRIES_MAX + 1)], META),
            },
            Kind.LOG,
            "RECORD_TOO_LARGE",
            "row 71: meta has more than 64 entries",
        ),
    ],
)
def test_a_wrong_row_is_reported_with_its_ordinal(
    columns: dict[str, pa.Array], kind: Kind, reason: str, named: str
) -> None:
    with pytest.raises(EddylineError) as raised:
        rows_to_batch(pa.record_batch(columns), kind, 70)
    assert (raised.value.reason, raised.value.metadata["index"]) == (reason, "71")
    assert raised.value.message.startswith(named)


@pytest.mark.parametrize(
    ("schema", "kind", "named"),
    [
        (pa.schema([("data", pa.binary()), ("seq", pa.int64()), ("ts", pa.int64())]), Kind.LOG, "leave out seq, ts"),
        (pa.schema([("value", pa.binary())]), Kind.LOG, "column value: it is unknown"),
        (pa.schema([("data", pa.int64())]), Kind.LOG, "column data: it has type int64, expected: binary or string"),
        (pa.schema([("data", pa.binary()), ("tag", pa.binary())]), Kind.LOG, "column tag: it has type binary"),
        (pa.schema([("data", pa.binary()), ("source_ts", pa.timestamp("us"))]), Kind.LOG, "timestamp (with a zone)"),
        (pa.schema([("data", pa.binary()), ("meta", pa.list_(pa.utf8()))]), Kind.LOG, "column meta: it has type"),
        (
            pa.schema([("data", pa.binary()), ("source_ts", pa.timestamp("us", "UTC")), ("source_ts_ns", pa.int64())]),
            Kind.LOG,
            "column source_ts: source_ts_ns is also given",
        ),
        (pa.schema([("data", pa.binary())]), Kind.KV, "column key: it is missing: topic t is of kind KV"),
        (pa.schema([("tag", pa.utf8())]), Kind.LOG, "column data: it is missing, and so is key; found: tag"),
        (pa.schema([]), Kind.LOG, "found: no column"),
    ],
)
def test_columns_that_are_not_written_are_refused_by_name(schema: pa.Schema, kind: Kind, named: str) -> None:
    with pytest.raises(EddylineError) as raised:
        check_columns(schema, kind, "t")
    assert named in raised.value.message


def test_every_written_column_is_documented() -> None:
    assert set(ROW_SCHEMA.names) | {"source_ts"} == set(WRITTEN)


def test_meta_keeps_its_order_and_repeats() -> None:
    meta = (MetaEntry("b", b"1"), MetaEntry("a", b""), MetaEntry("b", b"2"))
    records = [Record(data=b"", meta=meta), Record(data=b""), Record(data=b"", meta=meta[:1])]
    assert rows_to_batch(rows_of(records), Kind.LOG).to_rows() == records
