"""Batches of a size for Spark: joined, cut, complete and in order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.spark.reader import batch_sizes
from eddyline.spark.reader.batch_sizes import ROWS_MIN, merge_small_batches

pytestmark = pytest.mark.spark


def batch(first: int, count: int, width: int = 1) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict({"n": numbers, "data": [b"x" * width for _ in numbers]})


@given(st.lists(st.integers(0, 4_000), max_size=12))
def test_small_batches_become_large_ones_with_the_same_rows(counts: list[int]) -> None:
    starts = [sum(counts[:at]) for at in range(len(counts))]
    made = list(merge_small_batches(batch(start, count) for start, count in zip(starts, counts, strict=True)))
    assert [number for part in made for number in part.column("n").to_pylist()] == list(range(sum(counts)))
    assert all(part.num_rows >= ROWS_MIN for part in made[:-1])


def test_a_batch_of_the_right_size_is_passed_on_as_it_is() -> None:
    right = batch(0, ROWS_MIN)
    assert next(iter(merge_small_batches([right]))) is right


def test_huge_batches_are_cut_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizes, "BYTES_MAX", 100_000)
    made = list(merge_small_batches([batch(0, 40, 10_000), batch(40, 2, 200_000)]))
    assert [number for part in made for number in part.column("n").to_pylist()] == list(range(42))
    assert all(part.nbytes <= 100_000 or part.num_rows == 1 for part in made)
