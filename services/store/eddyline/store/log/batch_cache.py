"""Cache of batches just written or read, bounded in bytes: WAL frames and record batches of segments.

Followers and readers at the tail get their batches from here without touching the disk. The least recently used goes first.
A key is the batch's location (a topic's id and a frame's location, or a segment and a number), whose content never changes.
Threading: event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from eddyline.core.records.batch import Batch

ENTRY_OVERHEAD_BYTES: Final = 512
"""Cost of a cached batch without its buffers (objects, keys); measured with tracemalloc, rounded up."""


class _CachedBatch(NamedTuple):
    batch: Batch
    bytes: int


class BatchCache:
    """Batches by their location."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Hashable, _CachedBatch] = OrderedDict()
        self.bytes = 0

    def add(self, key: Hashable, batch: Batch, batch_bytes: int | None = None) -> None:
        """Add a batch, with its bytes if known; the oldest batches go beyond the bound. A batch larger than the bound is
        not kept."""
        if key in self._kept:
            return
        size = (batch.nbytes if batch_bytes is None else batch_bytes) + ENTRY_OVERHEAD_BYTES
        if size > self._bytes_max:
            return  # it would push out all others, and then itself
        self._kept[key] = _CachedBatch(batch, size)
        self.bytes += size
        while self.bytes > self._bytes_max:
            _, evicted = self._kept.popitem(last=False)
            self.bytes -= evicted.bytes

    def get(self, key: Hashable) -> Batch | None:
        """Return the batch of this location, or None."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        self._kept.move_to_end(key)
        return kept.batch
