"""Record batches of a segment from batches of any size: small ones joined, large ones cut, in their order.

A record batch is read, verified and decompressed as a whole. If it is too small, its 670 bytes of metadata outweigh it; if
it is too large, reading one record costs all of it.
Threading: pure; memory is one record batch and one input batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from eddyline.core.records.batch import Batch
from eddyline.core.records.column import size_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LONE_MAX: Final = 512
"""Batches joined at a time. Joining bitmaps costs the square of their number, and a batch in memory is 0.5 KB more than
its cells: 65 536 single appends at once are 34 MB. Cost: their bytes are copied twice."""


def record_batches(batches: Iterable[Batch], *, rows_max: int, bytes_max: int) -> Iterator[Batch]:
    """Yield the same records in batches of at most `rows_max` rows and `bytes_max` bytes of cells; a larger record is a
    batch by itself."""
    joined: list[Batch] = []
    lone: list[Batch] = []
    rows = size = 0
    for batch in batches:
        cell_bytes = _cell_bytes(batch)
        whole = batch.count <= rows_max and cell_bytes <= bytes_max
        for piece in (batch,) if whole else _pieces(batch, rows_max=rows_max, bytes_max=bytes_max):
            piece_bytes = cell_bytes if whole else _cell_bytes(piece)
            if rows and (rows + piece.count > rows_max or size + piece_bytes > bytes_max):
                yield Batch.concat(joined + lone)
                joined, lone, rows, size = [], [], 0, 0
            lone.append(piece)
            rows += piece.count
            size += piece_bytes
            if len(lone) == LONE_MAX:
                joined.append(Batch.concat(lone))
                lone = []
    if rows:
        yield Batch.concat(joined + lone)


def _pieces(batch: Batch, *, rows_max: int, bytes_max: int) -> Iterator[Batch]:
    sizes = np.zeros(batch.count, dtype=np.int64)
    for column in batch.columns():
        if column is not None:
            sizes += size_array(column)
    ends = np.cumsum(sizes)
    start = done = 0
    while start < batch.count:
        fits = int(np.searchsorted(ends, done + bytes_max, side="right"))
        stop = max(start + 1, min(fits, start + rows_max))
        yield batch.slice(start, stop)
        start, done = stop, int(ends[stop - 1])


def _cell_bytes(batch: Batch) -> int:
    # Not a loop over `columns()`: this runs once for each single append.
    size = 0
    for column in (batch.key, batch.data, batch.tag, batch.node, batch.meta, batch.version):
        if column is not None:
            size += len(column.values)
    return size
