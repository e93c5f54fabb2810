"""Log of one EPHEMERAL topic: its batches, in memory alone.

I1: batches are in seq order, and none is empty.
Threading: event loop only.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eddyline.core.records.batch import Batch
    from eddyline.store.log.seq_set import SeqSet


class MemoryLog:
    """Batches of one topic. `count` is called with every change of their bytes, for the store's budget."""

    __slots__ = ("_batches", "_count", "_last", "_sizes")

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._batches: list[Batch] = []
        self._last: list[int] = []
        self._sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def add(self, batch: Batch, record_bytes: int) -> None:
        """Add the next batch."""
        self._batches.append(batch)
        self._last.append(batch.last_seq)
        self._sizes.append(record_bytes)
        self._count(record_bytes)

    def after(self, seq: int) -> Batch | None:
        """Return the first batch that holds a seq above `seq`."""
        position = bisect_right(self._last, seq)
        return self._batches[position] if position < len(self._batches) else None

    def remove(self, seqs: SeqSet) -> None:
        """Remove single rows."""
        was = sum(self._sizes)
        batches = [
            batch if (gone := seqs.mask(batch)) is None else batch.select(np.flatnonzero(~gone)) for batch in self
        ]
        kept = [
            (batch, size if batch is old else batch.record_bytes)
            for batch, old, size in zip(batches, self._batches, self._sizes, strict=True)
            if batch.count
        ]
        self._batches = [batch for batch, _ in kept]
        self._last = [batch.last_seq for batch, _ in kept]
        self._sizes = [size for _, size in kept]
        self._count(sum(self._sizes) - was)

    def drop_through(self, seq: int) -> None:
        """Drop batches that lie wholly at or below `seq`."""
        count = bisect_right(self._last, seq)
        self._count(-sum(self._sizes[:count]))
        del self._batches[:count], self._last[:count], self._sizes[:count]
