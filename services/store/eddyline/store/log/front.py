"""Walk over a topic's log from its first row: counts the records and bytes that a move of its floors takes.

Whole pieces (frames, or record batches of segments) are counted by their totals. Rows are read only where a boundary lies
within a piece, or where its totals include rows that are already gone. The caller reads them, wherever they are:

    for piece in pieces:
        if not walk.take(piece):
            walk.take_rows(batch of that piece)
        if walk.done:
            break

I1: rows are taken in seq order, and no more than requested: without the last one taken, either bound is missed.
I2: a row is taken once, though a merge may put it into a later piece again.
Threading: one walk has one caller; nothing is read or kept beyond its arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eddyline.core.records.size import counted_bytes

if TYPE_CHECKING:
    from eddyline.core.records.batch import Batch
    from eddyline.store.log.floors import Floors
    from eddyline.store.log.seq_set import SeqSet


class LogRun(NamedTuple):
    """Rows that lie together. `records` and `record_bytes` are of all records in it, those since deleted too; no gaps."""

    first_seq: int
    last_seq: int
    records: int
    record_bytes: int


class LogStartWalk:
    """Takes the rows up to `through_seq`, and further ones until all taken have `excess_bytes`. See the module.

    `floors` and `uncounted` (`eddyline.store.log.floors`) are those before the move; neither may change during the walk."""

    def __init__(self, floors: Floors, uncounted: SeqSet, *, through_seq: int = 0, excess_bytes: int = 0) -> None:
        self._walked_seq = floors.trim
        self._uncounted = uncounted
        self._through_seq = through_seq
        self._excess_bytes = excess_bytes
        self.removed_bytes = 0
        """Bytes of the live records taken."""
        self.bytes_floor = 0
        """Seq of the last record taken for `excess_bytes` alone, beyond `through_seq`; 0 = none was needed."""
        self.done = through_seq <= self._walked_seq and excess_bytes <= 0
        """True = later rows stay."""

    def take(self, piece: LogRun) -> bool:
        """Take the next piece by its totals; False = its rows are needed."""
        first_seq, last_seq = max(piece.first_seq, self._walked_seq + 1), piece.last_seq
        if not self.done and first_seq > self._through_seq and self.removed_bytes >= self._excess_bytes:
            self.done = True
        live = 0 if self.done or first_seq > last_seq else self._live(first_seq, last_seq)
        if live == 0:
            self._walked_seq = max(self._walked_seq, last_seq)
            return True
        if live != piece.records:
            return False
        if last_seq > self._through_seq:
            if self.removed_bytes + piece.record_bytes > self._excess_bytes:
                return False
            self.bytes_floor = self._uncounted.last_absent_through(last_seq)
        self.removed_bytes += piece.record_bytes
        self._walked_seq = last_seq
        return True

    def take_rows(self, batch: Batch) -> None:
        """Take the requested rows of a piece, at least one."""
        sizes = counted_bytes(batch)
        sizes[: batch.index_after(self._walked_seq)] = 0
        self._walked_seq = max(self._walked_seq, batch.last_seq)
        gone = self._uncounted.mask(batch)
        if gone is not None:
            sizes[gone] = 0
        taken = np.cumsum(sizes)
        stop = batch.index_after(self._through_seq)
        removed = int(taken[stop - 1]) if stop else 0
        missing = self._excess_bytes - self.removed_bytes
        if removed < missing:
            # The record that brings the missing bytes, or the last one there is.
            at = int(np.searchsorted(taken, min(missing, int(taken[-1])), side="left"))
            if int(taken[at]) > removed:
                self.bytes_floor = batch.seq_at(at)
                stop, removed = at + 1, int(taken[at])
        self.removed_bytes += removed
        self.done = stop < batch.count and self.removed_bytes >= self._excess_bytes

    def _live(self, first_seq: int, last_seq: int) -> int:
        return last_seq - first_seq + 1 - self._uncounted.count(first_seq, last_seq)
