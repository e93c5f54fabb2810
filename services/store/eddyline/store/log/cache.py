"""Frames that were just written or read, in memory, bounded in bytes.

Followers and readers at the tail get their batches from here without touching the disk. Least recently used goes first.
Threading: event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eddyline.core.batch import Batch

ENTRY_OVERHEAD_BYTES: Final = 512
"""What a cached batch costs beside its buffers (objects, keys); seen with tracemalloc, rounded up."""


class FrameCache:
    """Batches by topic id and first seq."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], Batch] = OrderedDict()

    def add(self, topic_id: int, batch: Batch) -> None:
        """Keep a batch; the oldest go where the bound is passed."""
        key = (topic_id, batch.first_seq)
        if key in self._batches:
            return
        self._batches[key] = batch
        self._bytes += batch.nbytes + ENTRY_OVERHEAD_BYTES
        while self._bytes > self._bytes_max:
            _, evicted = self._batches.popitem(last=False)
            self._bytes -= evicted.nbytes + ENTRY_OVERHEAD_BYTES

    def get(self, topic_id: int, first_seq: int) -> Batch | None:
        """The batch that begins at `first_seq`, if it is here."""
        batch = self._batches.get((topic_id, first_seq))
        if batch is not None:
            self._batches.move_to_end((topic_id, first_seq))
        return batch
