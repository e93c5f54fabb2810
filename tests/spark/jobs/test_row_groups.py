"""Row groups end where their rows say, however the rows come."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eddyline.export.row_groups import row_groups

pytestmark = pytest.mark.spark

ROWS = st.lists(
    st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=400)), min_size=0, max_size=60
)
SCHEMA = pa.schema([("key", pa.binary()), ("data", pa.binary())])


def batch_of(rows: list[tuple[bytes | None, bytes | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[0] for row in rows], pa.binary()), pa.array([row[1] for row in rows], pa.binary())],
        schema=SCHEMA,
    )


@given(ROWS, st.lists(st.integers(1, 20)), st.integers(1, 20), st.integers(1, 3_000))
def test_groups_are_the_same_however_rows_come(
    rows: list[tuple[bytes | None, bytes | None]], cuts: list[int], rows_max: int, bytes_max: int
) -> None:
    whole = batch_of(rows)
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(whole.slice(at, cut))
        at += cut
    pieces.append(whole.slice(min(at, len(rows))))
    together = list(row_groups([whole], rows_max=rows_max, bytes_max=bytes_max))
    assert list(row_groups(pieces, rows_max=rows_max, bytes_max=bytes_max)) == together
    assert [row for group in together for row in group.to_pylist()] == whole.to_pylist()
    for group in together:
        sizes = [64 + len(row["key"] or b"") + len(row["data"] or b"") for row in group.to_pylist()]
        assert len(sizes) <= rows_max
        assert sum(sizes[:-1]) < bytes_max
    for group in together[:-1]:
        sizes = [64 + len(row["key"] or b"") + len(row["data"] or b"") for row in group.to_pylist()]
        assert len(sizes) == rows_max or sum(sizes) >= bytes_max
