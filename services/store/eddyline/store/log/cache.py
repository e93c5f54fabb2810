"""Batches that were just written or read, in memory, bounded in bytes: WAL frames and segments' record batches alike.

Followers and readers at the tail get their batches from here without touching the disk. Least recently used goes first.
A key is where the batch lies (a topic's id and a frame's place, or a segment and a number): what is there never changes.
Threading: event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from eddyline.core.batch import Batch

ENTRY_OVERHEAD_BYTES: Final = 512
"""What a cached batch costs beside its buffers (objects, keys); seen with tracemalloc, rounded up."""


class BatchCache:
    """Batches by their place."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[Hashable, Batch] = OrderedDict()
        self.bytes = 0

    def add(self, key: Hashable, batch: Batch) -> None:
        """Keep a batch; the oldest go where the bound is passed."""
        if key in self._batches:
            return
        self._batches[key] = batch
        self.bytes += batch.nbytes + ENTRY_OVERHEAD_BYTES
        while self.bytes > self._bytes_max:
            _, evicted = self._batches.popitem(last=False)
            self.bytes -= evicted.nbytes + ENTRY_OVERHEAD_BYTES

    def get(self, key: Hashable) -> Batch | None:
        """The batch at this place, if it is here."""
        batch = self._batches.get(key)
        if batch is not None:
            self._batches.move_to_end(key)
        return batch
