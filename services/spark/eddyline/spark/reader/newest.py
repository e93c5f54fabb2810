"""Of many rows the newest of each key: what a task keeps while it reads what a fold is made from.

Rows come in any order, and may come twice: of each key the one with the highest `seq` is kept, a deletion too, since an
older row of its key may come yet. Work is done a column at a time, when what is held has doubled, so that each row is
looked at a few times at most.
I1: memory is twice what is kept, or `SETTLE_BYTES` where that is more.
Rejected: a dict by key, 1 us a row and 200 bytes a key in Python's objects; sorting, which moves every payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from eddyline.core.records.record import Op
from eddyline.export.split.made_arrays import bool_array

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SETTLE_BYTES: Final = 128 << 20
"""Below it older rows are kept beside newer ones: settling costs some 0.1 us a row, whatever comes of it."""


class NewestByKey:
    """Batches of the store's columns in, with `seq`, `op` and `key` at least; the newest rows out. `nbytes` is held."""

    def __init__(self, *, settle_bytes: int = SETTLE_BYTES) -> None:
        self._settle_bytes = settle_bytes
        self._held: list[pa.RecordBatch] = []
        self.nbytes = 0
        self._settled_nbytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self.nbytes += batch.nbytes
        if self.nbytes > max(self._settle_bytes, 2 * self._settled_nbytes):
            self._settle()

    def live(self) -> Iterator[pa.RecordBatch]:
        """Yield the newest row of each key, but for deletions."""
        self._settle()
        for batch in self._held:
            column = batch.column("op")
            ops = np.frombuffer(column.buffers()[1], dtype=np.uint8, count=len(column), offset=column.offset)
            live = batch.filter(bool_array(ops == Op.PUT))
            if live.num_rows:
                yield live

    def _settle(self) -> None:
        if not self._held:
            return
        newest = _newest(
            pa.chunked_array([batch.column("key") for batch in self._held]),
            np.concatenate([_seqs(batch) for batch in self._held]),
        )
        kept, at = [], 0
        for batch in self._held:
            chosen = batch.filter(bool_array(newest[at : at + batch.num_rows]))
            at += batch.num_rows
            if chosen.num_rows:
                kept.append(chosen)
        # Many small ones would be gone through again and again.
        self._held = pa.Table.from_batches(kept).combine_chunks().to_batches() if kept else []
        self.nbytes = self._settled_nbytes = sum(batch.nbytes for batch in self._held)


def _newest(keys: pa.ChunkedArray, seqs: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which rows have the highest seq of their key; of equal ones the last."""
    encoded = keys.dictionary_encode()
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    rows = np.arange(len(codes)) if (seqs[1:] >= seqs[:-1]).all() else np.argsort(seqs, kind="stable")
    last = np.empty(len(encoded.chunk(0).dictionary), dtype=np.int64)
    # Of several values for one place numpy leaves the last.
    last[codes[rows]] = rows
    newest = np.zeros(len(codes), dtype=np.bool_)
    newest[last] = True
    return newest


def _seqs(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    column = batch.column("seq")
    return np.frombuffer(column.buffers()[1], dtype="<u8", count=len(column), offset=8 * column.offset)
