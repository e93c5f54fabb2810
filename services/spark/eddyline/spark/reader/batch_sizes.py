"""Record batches of a size that suits Spark: small ones joined, huge ones cut, in their order.

Spark's cost a batch is some 0.5 ms: 1.8 M rows/s come through at 1 000 rows a batch, 3 to 4.7 M at 10 000 and more. Its
cost in memory is the batch, once in Python and once in the JVM for each task.
I1: a batch that is neither is passed on as it is, without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROWS_MIN: Final = 10_000
"""Below it batches are joined."""
BYTES_MAX: Final = 64 << 20
"""Above it they are cut, down to one row, which may be larger. Elsewhere only rows are counted (10 000 by default), and a
batch of such of 1 MiB takes 10 GB."""


def merge_small_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in batches of at least `ROWS_MIN` rows, where they are not too large for it."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        for part in _cut(batch):
            if held and nbytes + part.nbytes > BYTES_MAX:
                yield pa.concat_batches(held)
                held, rows, nbytes = [], 0, 0
            held.append(part)
            rows, nbytes = rows + part.num_rows, nbytes + part.nbytes
            if rows >= ROWS_MIN:
                yield held[0] if len(held) == 1 else pa.concat_batches(held)
                held, rows, nbytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= BYTES_MAX or batch.num_rows < 2:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _cut(batch.slice(0, half))
    yield from _cut(batch.slice(half))
