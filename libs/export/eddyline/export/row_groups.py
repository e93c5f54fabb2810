"""Rows cut into the row groups of a Parquet file: by counts and bytes of the rows alone.

I1: where a group ends does not depend on how the rows came in batches, so that an attempt that was broken off and went on
gives the same bytes as one that was not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

GROUP_ROWS: Final = 122_880
"""duckdb's own, which reads a group a thread. Elsewhere 128 MB, whatever is in it; small ones make statistics useful, since
rows lie in order of `seq` and `ts`."""
GROUP_BYTES: Final = 64 << 20
"""With values of 1 MiB a group of that many rows would take 120 GB: a task holds one group and its encoded form."""
_ROW_BYTES: Final = 64
_SIZED: Final = ("key", "data")


def row_groups(
    batches: Iterable[pa.RecordBatch], *, rows_max: int = GROUP_ROWS, bytes_max: int = GROUP_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches`, which have one schema, in groups: the row that reaches a bound is the group's last."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        left = batch
        ends = np.cumsum(_row_bytes(batch))
        done = 0
        while left.num_rows:
            before = int(ends[done - 1]) if done else 0
            fits = int(np.searchsorted(ends[done:], before + bytes_max - nbytes)) + 1
            taken = min(fits, rows_max - rows, left.num_rows)
            held.append(left.slice(0, taken))
            left = left.slice(taken)
            done += taken
            rows, nbytes = rows + taken, nbytes + int(ends[done - 1]) - before
            if rows == rows_max or nbytes >= bytes_max:
                yield _joined(held)
                held, rows, nbytes = [], 0, 0
    if held:
        yield _joined(held)


def _joined(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    # Also of one: what lies behind a slice would change how it is encoded.
    return pa.concat_batches(held)


def _row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    sizes = np.full(batch.num_rows, _ROW_BYTES, dtype=np.int64)
    for name in _SIZED:
        sizes += pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy().astype(np.int64)
    return sizes
