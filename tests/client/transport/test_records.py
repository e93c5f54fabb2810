"""Records of answers: rows and columns give a reader the same, and columns that do not fit are an error by name."""

from __future__ import annotations

import pytest
from hypothesis import given

from eddyline.client.transport.records import decode_data_bytes, decode_records
from eddyline.core.errors import MalformedColumns
from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.v1 import types_pb2
from tests.support.models.batches import batch_to_columns, batch_to_rows, placed


@given(placed())
def test_rows_and_columns_of_an_answer_are_equal_records(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    by_columns, by_rows = decode_records(batch_to_columns(batch)), decode_records(batch_to_rows(batch))
    assert by_columns == by_rows
    assert [*by_columns] == [*by_rows]
    assert [type(record.op) for record in by_columns] == [type(record.op) for record in by_rows]


@pytest.mark.parametrize("op", [6, 200])
def test_an_op_of_a_later_version_stays_a_number(op: int) -> None:
    columns = batch_to_columns(Batch.from_rows([Record(seq=1), Record(seq=2)]))
    columns.ops = bytes([1, op])
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(op=number) for number in (1, op)])  # type: ignore[arg-type]
    assert [record.op for record in decode_records(columns)] == [record.op for record in decode_records(rows)]
    assert [record.op for record in decode_records(columns)] == [1, op]


@pytest.mark.parametrize("count", [1, 5])
def test_columns_that_do_not_fit_together_are_refused(count: int) -> None:
    for name in ("key", "data", "tag", "version", "meta"):
        columns = batch_to_columns(Batch.from_rows([Record(seq=seq + 1, key=b"k") for seq in range(count)]))
        getattr(columns, name).values += b"x"
        with pytest.raises(MalformedColumns, match=name):
            decode_records(columns)


def test_lengths_of_data_that_was_left_out_are_equal_in_rows_and_columns() -> None:
    lengths = (0, None, 7)
    rows = types_pb2.RecordBatch(records=[types_pb2.Record(data_bytes=length) for length in lengths])
    columns = types_pb2.ColumnarBatch(count=3, data_bytes=bytes(4) + b"\xff" * 4 + (7).to_bytes(4, "little"))
    assert decode_data_bytes(rows) == decode_data_bytes(columns) == lengths
    assert decode_data_bytes(types_pb2.ColumnarBatch(count=2)) == (None, None)
    columns.count = 2
    with pytest.raises(MalformedColumns, match="data_bytes"):
        decode_data_bytes(columns)
