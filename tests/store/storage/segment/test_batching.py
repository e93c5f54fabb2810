"""Record batches of input batches of any size: within both bounds, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eddyline.core.records.batch import Batch
from eddyline.core.records.record import Record
from eddyline.store.storage.segment.batching import LONE_MAX, record_batches
from tests.support.models.batches import buffers_of, placed

ROWS = [
    Record(number + 1, 5, 0, 1, b"k", b"x" * (number % 7), "t" if number % 3 else None)
    for number in range(3 * LONE_MAX + 1)
]


def test_single_appends_become_one_batch() -> None:
    (joined,) = record_batches([Batch.from_rows([row]) for row in ROWS], rows_max=1 << 16, bytes_max=1 << 20)
    assert buffers_of(joined) == buffers_of(Batch.from_rows(ROWS))


def test_one_large_batch_is_cut_at_both_bounds() -> None:
    pieces = list(record_batches([Batch.from_rows(ROWS)], rows_max=100, bytes_max=400))
    assert [row for piece in pieces for row in piece.to_rows()] == ROWS
    cells = [sum([len(column.values) for column in piece.columns() if column is not None]) for piece in pieces]
    assert max(cells) <= 400
    assert min(cells[:-1]) > 390
    by_rows = list(record_batches([Batch.from_rows(ROWS)], rows_max=100, bytes_max=1 << 20))
    assert {piece.count for piece in by_rows[:-1]} == {100}


def test_record_over_the_bound_is_a_batch_by_itself() -> None:
    rows = [Record(seq, 1, data=b"x" * size) for seq, size in ((1, 3), (2, 50), (3, 3), (4, 3))]
    batches = record_batches([Batch.from_rows(rows)], rows_max=10, bytes_max=10)
    assert [[row.seq for row in batch.to_rows()] for batch in batches] == [[1], [2], [3, 4]]


def test_small_batches_are_not_cut_to_fill() -> None:
    batches = [Batch.from_rows(ROWS[start : start + 40]) for start in range(0, 200, 40)]
    assert [batch.count for batch in record_batches(batches, rows_max=100, bytes_max=1 << 20)] == [80, 80, 40]


@given(placed(), st.integers(1, 8), st.integers(1, 30))
def test_rows_are_unchanged(rows: list[Record], rows_max: int, bytes_max: int) -> None:
    batches = list(record_batches([Batch.from_rows(rows), Batch(0)], rows_max=rows_max, bytes_max=bytes_max))
    assert [row for batch in batches for row in batch.to_rows()] == rows
    assert all(0 < batch.count <= rows_max for batch in batches)
