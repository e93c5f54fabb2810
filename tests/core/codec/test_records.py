"""Round trips of batches, rows, gaps and filters through protobuf's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.codec import records as wire
from eddyline.core.codec.records import (
    answer_from_columns,
    answer_from_rows,
    batch_from_columns,
    batch_from_rows,
    filter_from_pb,
    filter_to_pb,
    gap_from_pb,
    gap_to_pb,
    items_from_pb,
    record_from_pb,
    record_of_columns,
    record_to_pb,
)
from eddyline.core.codec.row_decode import batch_of_row
from eddyline.core.errors import (
    BatchTooLarge,
    Code,
    EddylineError,
    InvalidArgument,
    InvalidOp,
    MalformedColumns,
    RecordTooLarge,
)
from eddyline.core.model.read import ALL_RECORDS, EXAMINED_RECORDS_MAX, RecordFilter
from eddyline.core.records.batch import Batch
from eddyline.core.records.gap import encode_gap, gap_of
from eddyline.core.records.record import META_ENTRIES_MAX, Gap, GapReason, Op, Record, effective_version
from eddyline.v1 import log_pb2, types_pb2
from tests.support.models.batches import appends, batch_to_columns, batch_to_rows, buffers_of, items_to_pb, placed


def as_seen(row: Record) -> Record:
    return row._replace(version=effective_version(row.version, row.seq))


@given(appends())
def test_rows_and_columns_of_an_append_become_equal_batches(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    columns = types_pb2.ColumnarBatch.FromString(batch_to_columns(batch).SerializeToString())
    by_rows = types_pb2.RecordBatch.FromString(batch_to_rows(batch).SerializeToString())
    assert buffers_of(batch_from_columns(columns)) == buffers_of(batch)
    assert buffers_of(batch_from_rows(by_rows)) == buffers_of(batch)


@given(placed())
def test_answers_keep_seqs_and_times_and_rows_have_the_effective_version(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    assert answer_from_columns(batch_to_columns(batch)) == batch
    assert answer_from_rows(batch_to_rows(batch)).to_rows() == [as_seen(row) for row in rows]
    assert [record_from_pb(record_to_pb(row)) for row in rows] == [as_seen(row) for row in rows]


@given(placed())
def test_the_columns_of_one_record_are_decoded_like_several(rows: list[Record]) -> None:
    for row in rows:
        lone = record_of_columns(batch_to_columns(Batch.from_rows([row])))
        assert lone == (None if row.meta else as_seen(row))
    assert len(rows) == 1 or record_of_columns(batch_to_columns(Batch.from_rows(rows))) is None


@pytest.mark.parametrize("name", ["key", "data", "tag", "node", "version"])
def test_columns_of_one_record_that_do_not_fit_are_left_to_the_check(name: str) -> None:
    for offsets, values, validity in (
        (b"", b"x", b""),
        (bytes(8), b"x", b""),
        (bytes(4) + b"\1\0\0\0", b"x", b"\1"),
        (bytes(4) + b"\1\0\0\0", b"\xff", b""),
    ):
        column = types_pb2.BinaryColumn(offsets=offsets, values=values, validity=validity)
        columns = types_pb2.ColumnarBatch(count=1, first_seq=3, **{name: column})  # type: ignore[arg-type]
        lone = record_of_columns(columns)
        assert lone is None or (values == b"\xff" and name not in {"tag", "node"})


def test_an_op_of_a_later_version_passes_only_where_it_may() -> None:
    columns = types_pb2.ColumnarBatch(count=2, first_seq=1, ops=b"\1\x07")
    assert answer_from_columns(columns, later_ops=True).ops_array().tolist() == [1, 7]
    with pytest.raises(MalformedColumns, match="unknown op 7"):
        answer_from_columns(columns)


@given(placed())
def test_a_single_row_is_packed_like_several(rows: list[Record]) -> None:
    for row in map(record_to_pb, rows):
        assert buffers_of(batch_of_row(row, Op.PUT)) == buffers_of(Batch.from_rows([record_from_pb(row)]))


@pytest.mark.parametrize("count", [1, 20])
def test_an_unset_op_becomes_the_default_op_of_the_topic(count: int) -> None:
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(key=b"k")] * count)
    rows.records[-1].op = types_pb2.OP_DELETE
    for default in (Op.APPEND, Op.PUT):
        expected = [default] * (count - 1) + [Op.DELETE]
        assert batch_from_rows(rows, default_op=default).ops_array().tolist() == expected
    columns = types_pb2.ColumnarBatch(count=count)
    assert batch_from_columns(columns).ops is None
    assert batch_from_columns(columns, default_op=Op.PUT).ops == bytes([Op.PUT]) * count
    columns.ops = bytes([0] * (count - 1) + [3])
    assert batch_from_columns(columns, default_op=Op.PUT).ops == bytes([2] * (count - 1) + [3])


@pytest.mark.parametrize("count", [1, 20])
def test_an_append_of_rows_with_a_seq_or_time_is_refused(count: int) -> None:
    for placed_row in (types_pb2.Record(seq=1), types_pb2.Record(ts_ms=1)):
        rows = types_pb2.RecordBatch(records=[types_pb2.Record()] * (count - 1) + [placed_row])
        with pytest.raises(InvalidArgument):
            batch_from_rows(rows)
    with pytest.raises(MalformedColumns):
        batch_from_columns(types_pb2.ColumnarBatch(count=1, first_seq=1))


@pytest.mark.parametrize("op", [6, 300, -1])
def test_an_unknown_op_of_a_row_is_refused(op: int) -> None:
    row = types_pb2.Record.FromString(b"\x20" + _varint(op))
    for count in (1, 20):
        with pytest.raises(InvalidOp):
            batch_from_rows(types_pb2.RecordBatch(records=[row] * count))


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    result = b""
    while number > 0x7F:
        result += bytes([number & 0x7F | 0x80])
        number >>= 7
    return result + bytes([number])


def test_bounds_hold_for_rows_and_columns() -> None:
    with pytest.raises(RecordTooLarge):
        batch_from_rows(types_pb2.RecordBatch(records=[types_pb2.Record(key=bytes(1025))]))
    with pytest.raises(BatchTooLarge):
        batch_from_rows(types_pb2.RecordBatch(records=[types_pb2.Record()] * 10_001))
    with pytest.raises(BatchTooLarge):
        batch_from_columns(types_pb2.ColumnarBatch(count=0xFFFFFFFF), default_op=Op.PUT)
    with pytest.raises(MalformedColumns):
        answer_from_columns(types_pb2.ColumnarBatch(count=0xFFFFFFFF))


@given(st.binary(max_size=80))
def test_foreign_bytes_become_a_batch_or_an_error_of_the_contract(data: bytes) -> None:
    columns = types_pb2.ColumnarBatch(count=data[0] % 4 if data else 0)
    columns.data.offsets, columns.data.values, columns.data.validity = data[:12], data[12:20], data[20:21]
    columns.meta.offsets, columns.meta.values = data[21:33], data[33:]
    try:
        batch = batch_from_columns(columns)
    except EddylineError as error:
        assert error.code is Code.INVALID_ARGUMENT
    else:
        assert len(batch.to_rows()) == columns.count


ITEMS: list[Batch | Gap] = [
    Batch.from_rows([Record(1, 5, data=b"a", version=b"v"), Record(2, 5, data=b"b", version=b"w")]),
    Gap(3, 3, GapReason.SUPERSEDED, 3, source_identity=b"id", source_first=7, source_last=9),
    Gap(0, 0, GapReason.RECREATED, old_epoch=4, new_epoch=5),
]


@pytest.mark.parametrize("batch_format", [0, types_pb2.BATCH_FORMAT_ROWS, types_pb2.BATCH_FORMAT_COLUMNS])
def test_items_survive_a_round_trip_in_either_format(batch_format: int) -> None:
    assert items_from_pb(items_to_pb(ITEMS, batch_format)) == ITEMS


def test_an_unknown_format_or_item_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        items_to_pb(ITEMS, 9)
    with pytest.raises(MalformedColumns):
        items_from_pb([log_pb2.BatchItem()])


def test_a_gap_reason_of_a_later_version_is_kept() -> None:
    gap = Gap(1, 2, 99)
    assert gap_from_pb(gap_to_pb(gap)) == gap


def test_filters_survive_a_round_trip() -> None:
    record_filter = RecordFilter((b"a", b""), ("t",), ("n",), (1, 3))
    assert filter_from_pb(filter_to_pb(record_filter)) == record_filter
    assert filter_from_pb(log_pb2.RecordFilter()) is ALL_RECORDS


def test_a_filter_of_an_unknown_op_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        filter_from_pb(log_pb2.RecordFilter(ops=[types_pb2.OP_UNSPECIFIED]))


@pytest.mark.parametrize("count", [1, 20])
def test_too_many_meta_entries_are_refused_before_any_object_is_made(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("an entry was made of a batch that is refused")

    monkeypatch.setattr(wire, "MetaEntry", touched)
    entries = META_ENTRIES_MAX + 1
    over = types_pb2.Record(meta=[types_pb2.MetaEntry()] * entries)
    rows = types_pb2.RecordBatch(records=[types_pb2.Record()] * (count - 1) + [over])
    for take in (batch_from_rows, answer_from_rows):
        with pytest.raises(RecordTooLarge) as raised:
            take(rows)
        assert raised.value.metadata == {
            "index": str(count - 1),
            "field": "meta",
            "sizeEntries": str(entries),
            "limitEntries": str(META_ENTRIES_MAX),
        }


def test_an_answer_of_more_rows_than_a_read_examines_is_malformed() -> None:
    row = types_pb2.Record(op=types_pb2.OP_PUT)
    with pytest.raises(MalformedColumns):
        answer_from_rows(types_pb2.RecordBatch(records=[row] * (EXAMINED_RECORDS_MAX + 1)))


@pytest.mark.parametrize("op", list(Op))
def test_ops_of_rows_are_members(op: Op) -> None:
    row = record_from_pb(types_pb2.Record(op=types_pb2.Op.ValueType(op)))
    (unpacked,) = Batch.from_rows([Record(op=op)]).to_rows()
    assert row.op is op
    assert unpacked.op is op


def test_an_unknown_op_stays_a_number() -> None:
    assert record_from_pb(types_pb2.Record()).op == 0
    assert record_from_pb(types_pb2.Record.FromString(b"\x20" + _varint(300))).op == 300


@pytest.mark.parametrize("reason", list(GapReason))
def test_known_gap_reasons_are_members(reason: GapReason) -> None:
    gap = Gap(1, 2, reason)
    assert gap_from_pb(gap_to_pb(gap)).reason is reason
    assert gap_of(3, encode_gap(gap)).reason is reason
