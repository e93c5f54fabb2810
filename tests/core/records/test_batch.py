"""Batches agree with lists of records, and are canonical."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.errors import EddylineError, InvalidArgument, InvalidOp, MalformedColumns
from eddyline.core.records.batch import Batch, Column
from eddyline.core.records.record import MetaEntry, Op, Record
from tests.support.models.batches import appends, buffers_of, placed


@given(appends() | placed())
def test_rows_survive_a_round_trip(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    assert batch.count == len(rows)
    assert batch.to_rows() == rows


def test_absent_and_empty_cells_differ() -> None:
    rows = [Record(key=None, data=b"", tag="", node=None), Record(key=b"", data=None, tag=None, node="")]
    assert Batch.from_rows(rows).to_rows() == rows


def test_a_single_empty_cell_is_not_an_absent_one() -> None:
    empty, absent = Batch.from_rows([Record(data=b"")]), Batch.from_rows([Record()])
    assert empty.data is not None
    assert absent.data is None
    assert empty.to_rows()[0].data == b""


def test_redundant_columns_are_left_out() -> None:
    batch = Batch.from_rows([Record(op=Op.APPEND, meta=(), version=b"")] * 3)
    assert batch == Batch(3)
    assert batch.nbytes == 0


def test_all_present_needs_no_bitmap() -> None:
    key = Batch.from_rows([Record(key=b"a"), Record(key=b"b")]).key
    assert key == Column(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]), b"ab", None)


def test_bitmap_is_least_significant_bit_first() -> None:
    key = Batch.from_rows([Record(key=b"a"), Record(), Record(key=b"b")]).key
    assert key is not None
    assert key.validity == b"\x05"


@given(appends() | placed(), st.integers(-2, 22), st.integers(-2, 22))
def test_slice_is_the_list_slice(rows: list[Record], start: int, stop: int) -> None:
    part = Batch.from_rows(rows).slice(start, stop)
    expected = rows[max(start, 0) : max(stop, 0)]
    assert part.to_rows() == expected
    assert buffers_of(part) == buffers_of(Batch.from_rows(expected))


@given(st.lists(appends(), max_size=5) | st.lists(placed(), max_size=5))
def test_concat_is_the_joined_list(lists: list[list[Record]]) -> None:
    joined = Batch.concat([Batch.from_rows(rows) for rows in lists])
    expected = [row for rows in lists for row in rows]
    assert joined.to_rows() == expected
    assert buffers_of(joined) == buffers_of(Batch.from_rows(expected))


@given(placed() | appends(), st.data())
def test_select_is_the_list_of_picked_rows(rows: list[Record], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=25)) if rows else []
    picked = Batch.from_rows(rows).select(np.array(indices, dtype=np.int64))
    expected = [rows[index] for index in indices]
    assert picked.to_rows() == expected
    assert buffers_of(picked) == buffers_of(Batch.from_rows(expected))


@given(placed())
def test_slices_of_slices_have_the_same_bytes_as_one_slice(rows: list[Record]) -> None:
    batch = Batch.from_rows(rows)
    ones = [batch.slice(index, index + 1) for index in range(batch.count)]
    assert Batch.concat(ones) == batch


def test_slice_shares_the_values() -> None:
    batch = Batch.from_rows([Record(data=b"aaaa"), Record(data=b"bbbb"), Record(data=b"cccc")])
    part = batch.slice(1, 3).data
    assert batch.data is not None
    assert part is not None
    whole_at = np.frombuffer(batch.data.values, dtype=np.uint8).ctypes.data
    assert np.frombuffer(part.values, dtype=np.uint8).ctypes.data == whole_at + 4


def test_every_operation_accepts_memoryviews() -> None:
    rows = [Record(i + 1, 5, i, 1 + i % 4, b"k" * i, b"d", "é", None, (MetaEntry("a", b"b"),), b"v") for i in range(9)]
    batch = Batch.from_rows(rows)
    viewed = Batch(
        batch.count,
        first_seq=1,
        ts_ms=5,
        ops=memoryview(batch.ops or b""),
        source_ts_ns=memoryview(batch.source_ts_ns or b""),
        key=batch.key and Column(memoryview(batch.key.offsets), memoryview(batch.key.values)),
        data=batch.data and Column(memoryview(batch.data.offsets), memoryview(batch.data.values)),
        tag=batch.tag and Column(memoryview(batch.tag.offsets), memoryview(batch.tag.values)),
        meta=batch.meta and Column(memoryview(batch.meta.offsets), memoryview(batch.meta.values)),
        version=batch.version and Column(memoryview(batch.version.offsets), memoryview(batch.version.values)),
    )
    assert viewed == batch
    assert viewed.to_rows() == rows
    assert viewed.canonical() == batch
    assert viewed.slice(2, 5).slice(1, 2).to_rows() == rows[3:4]
    assert Batch.concat([viewed, viewed.slice(0, 2)]).to_rows() == rows + rows[:2]
    assert viewed.select(np.array([8, 0, 4])).to_rows() == [rows[8], rows[0], rows[4]]
    assert viewed.keys() == [row.key for row in rows]


@given(appends(), st.integers(1, 1 << 40))
def test_a_batch_with_seqs_has_consecutive_ones_and_one_time(rows: list[Record], first_seq: int) -> None:
    batch = Batch.from_rows(rows).with_seqs(first_seq, 77)
    assert [(row.seq, row.ts_ms) for row in batch.to_rows()] == [(first_seq + i, 77) for i in range(len(rows))]
    assert batch.last_seq == (first_seq + len(rows) - 1 if rows else 0)


@given(placed(), st.integers(0, 1 << 41))
def test_index_after_is_the_first_greater_seq(rows: list[Record], seq: int) -> None:
    batch = Batch.from_rows(rows)
    for after_seq in [seq, *(row.seq for row in rows), *(row.seq - 1 for row in rows)]:
        assert batch.index_after(after_seq) == sum(row.seq <= after_seq for row in rows)
    assert [batch.seq_at(index) for index in range(len(rows))] == [row.seq for row in rows]


def test_seqs_that_wrap_are_not_consecutive() -> None:
    seqs = ((1 << 64) - 1).to_bytes(8, "little") + bytes(8)
    assert Batch(2, first_seq=(1 << 64) - 1, seqs=seqs).canonical().seqs == seqs


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (Record(source_ts_ns=1 << 63), InvalidArgument),
        (Record(op=256), InvalidOp),
        (Record(op=-1), InvalidOp),
        (Record(tag="\ud800"), MalformedColumns),
        (Record(meta=(MetaEntry("\ud800", b""),)), MalformedColumns),
    ],
)
def test_a_record_that_cannot_be_packed_is_an_error_of_the_contract(record: Record, error: type[EddylineError]) -> None:
    with pytest.raises(error):
        Batch.from_rows([record, Record()])
